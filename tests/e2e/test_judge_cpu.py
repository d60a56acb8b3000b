"""The judge and the clock on compiled CPU kernels: right ones pass in any summation order, wrong ones have their verdict."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.kernels import build, f32, lowered, problem
from torch_forge.benchmarking.pairs import Bench
from torch_forge.benchmarking.peers import peers
from torch_forge.errors import UsageError
from torch_forge.machine.device import device_info
from torch_forge.machine.workers import WorkerPool
from torch_forge.records.device import DeviceInfo
from torch_forge.records.outcomes import Crashed, Mismatch, Passed, Refused, TimedOut, Verdict
from torch_forge.records.problem import Problem
from torch_forge.records.tensors import TensorSpec, contiguous
from torch_forge.settings import Settings
from torch_forge.validation.judge import Judge
from torch_forge.validation.trial import MAX_DEATHS

pytestmark = pytest.mark.compiler
ROWS, COLUMNS = 24, 200
SOFTMAX = problem(lambda x: torch.softmax(x, -1), f32(ROWS, COLUMNS), name="softmax")
SETTINGS = Settings(cache_dir=Path("unused"), trial_timeout_s=20.0)


def softmax_rows(element: str = "x[j]", *, finish: str = "") -> str:
    """Softmax over rows; ``element`` is what is read, ``finish`` runs at the end."""
    return f"""
    for (int64_t r = 0; r < in[0].sizes[0]; ++r) {{
      int64_t n = in[0].sizes[1];
      const float* x = IN(0) + r * n; float* y = OUT(0) + r * n;
      float top = -INFINITY, sum = 0;
      for (int64_t j = 0; j < n; ++j) top = ({element} > top || {element} != {element}) ? {element} : top;
      for (int64_t j = 0; j < n; ++j) sum += y[j] = expf({element} - top);
      for (int64_t j = 0; j < n; ++j) y[j] /= sum;
    }}
    {finish}"""


EATS_NAN = (
    softmax_rows()
    .replace("top = (x[j] > top || x[j] != x[j]) ? x[j] : top", "top = fmaxf(top, x[j])")
    .replace("sum += y[j] = expf(x[j] - top)", "sum += y[j] = (x[j] == x[j]) ? expf(x[j] - top) : 0")
)
BACKWARDS = softmax_rows().replace("for (int64_t j = 0; j < n; ++j) sum", "for (int64_t j = n - 1; j >= 0; --j) sum")
REMEMBERS = "static const float* p; static float kept[1 << 16]; bool known = p == IN(0); p = IN(0);" + softmax_rows(
    finish=f"if (known) memcpy(OUT(0), kept, {ROWS * COLUMNS * 4}); else memcpy(kept, OUT(0), {ROWS * COLUMNS * 4});"
)


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool() as running:
        running.start()
        yield running


@pytest.fixture(scope="module")
def cpu() -> Iterator[DeviceInfo]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield device_info("cpu", SETTINGS, measure=False)
    torch.set_num_threads(before)


def judge_of(of: Problem, cpu: DeviceInfo, pool: WorkerPool, settings: Settings = SETTINGS) -> Judge:
    return Judge(of, lowered=lowered(of), device=cpu, pool=pool, settings=settings, seed=11)


@pytest.fixture(scope="module")
def judge(cpu: DeviceInfo, pool: WorkerPool) -> Judge:
    return judge_of(SOFTMAX, cpu, pool)


@pytest.mark.parametrize("body", [softmax_rows(), BACKWARDS], ids=["in order", "backwards"])
def test_an_honest_kernel_passes(judge: Judge, body: str):
    verdict = judge.check(build(body, SOFTMAX), thorough=True)
    assert isinstance(verdict, Passed), verdict
    assert {c.case for c in verdict.cases} >= {"normal", "shifted", "special", "shifted, misaligned", "wide", "one_hot"}
    assert judge.weaknesses == ()


WRONG: dict[str, tuple[str, type, str]] = {
    "zeros": ("memset(OUT(0), 0, in[0].sizes[0] * in[0].sizes[1] * 4);", Mismatch, "error"),
    "the mean": (f"for (int i = 0; i < {ROWS * COLUMNS}; ++i) OUT(0)[i] = 1.f / {COLUMNS};", Mismatch, "error"),
    "writes nothing": ("", Mismatch, "not finite"),
    "leaves a tail": (softmax_rows().replace("j < n; ++j) y[j] /=", "j < n / 8 * 8 - 8; ++j) y[j] /="), Mismatch, "error"),
    "bfloat16 operands": (softmax_rows("bf16(x[j])"), Mismatch, "error"),
    "eats NaN": (EATS_NAN, Mismatch, "not finite"),
    "remembers by pointer": (REMEMBERS, Mismatch, "error"),
    "reads too far": (softmax_rows().replace("; ++j) sum", "; ++j) sum += 0 * x[n], sum"), Mismatch, "not finite"),
    "writes too far": (softmax_rows(finish=f"OUT(0)[{ROWS * COLUMNS}] = 1;"), Refused, "outside output"),
    "writes its input": (softmax_rows(finish="((float*)in[0].data)[5] += 1;"), Refused, "writes to its inputs"),
    "writes past its input": (softmax_rows(finish=f"((float*)in[0].data)[{ROWS * COLUMNS}] = 1;"), Refused, "to its inputs"),
    "says it cannot": ("return FORGE_UNSUPPORTED;", Refused, "does not serve"),
    "needs alignment": (f"if ((uintptr_t)in[0].data % 16) return 3; {softmax_rows()}", Refused, "misaligned"),
    "segfault": ("*(volatile int*)0 = 1;", Crashed, "signal 11"),
    "abort": ("abort();", Crashed, "signal 6"),
    "exits cleanly": ("_exit(0);", Crashed, "signal 0"),
}  # fmt: skip


def words(verdict: Verdict) -> str:
    match verdict:
        case Mismatch(reason=reason) | Refused(reason=reason):
            return reason
        case Crashed(signal=signal):
            return f"signal {signal}"
    return ""


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_has_its_verdict(judge: Judge, name: str):
    body, kind, evidence = WRONG[name]
    verdict = judge.check(build(body, SOFTMAX))
    assert isinstance(verdict, kind), verdict
    assert evidence in words(verdict)


def test_a_kernel_that_hangs_is_killed(cpu: DeviceInfo, pool: WorkerPool):
    impatient = judge_of(SOFTMAX, cpu, pool, Settings(cache_dir=Path("unused"), trial_timeout_s=1.0))
    assert isinstance(impatient.check(build("for (volatile int k = 0;; ++k);", SOFTMAX)), TimedOut)


def test_only_the_config_that_crashes_is_blamed(judge: Judge):
    crash, decline = "if (config == 1) *(volatile int*)0 = 1;", "if (config == 3) return FORGE_BAD_CONFIG;"
    body = f"{crash} {decline} {softmax_rows(finish='if (config == 2) OUT(0)[7] = 0;')}"
    verdicts = judge.verdicts(build(body, SOFTMAX, configs=5))
    assert [type(verdicts[c]) for c in range(5)] == [Passed, Crashed, Mismatch, Refused, Passed]


def test_after_some_dead_workers_the_rest_is_given_up(judge: Judge):
    verdicts = judge.verdicts(build("abort();", SOFTMAX, configs=MAX_DEATHS + 4))
    assert {type(v) for v in verdicts.values()} == {Crashed}


def test_a_library_that_cannot_be_loaded_has_a_verdict(judge: Judge, tmp_path: Path):
    good = build(softmax_rows(), SOFTMAX)
    (tmp_path / "broken.so").write_bytes(b"no library")
    broken = good.__class__(good.candidate, str(tmp_path / "broken.so"), "", 0.0, {})
    verdict = judge.check(broken)
    assert isinstance(verdict, Crashed)
    assert "LoadError" in verdict.log


def test_a_kernel_for_one_shape_is_judged_on_that_shape_only(judge: Judge):
    body = f"if (in[0].sizes[0] != {ROWS}) abort(); {softmax_rows()}"
    assert isinstance(judge.check(build(body, SOFTMAX), thorough=True), Passed)


def test_a_kernel_that_claims_a_class_of_shapes_is_judged_on_other_shapes(judge: Judge):
    loop = lowered(SOFTMAX)
    assert loop is not None
    honest = build(softmax_rows(), SOFTMAX, program=loop.program.digest)
    verdict = judge.check(honest, thorough=True)
    assert isinstance(verdict, Passed), verdict
    assert any(f"for {COLUMNS}" in c.case for c in verdict.cases)
    table = softmax_rows(finish=f"if (in[0].sizes[1] != {COLUMNS}) OUT(0)[0] = 0;")
    verdict = judge.check(build(table, SOFTMAX, program=loop.program.digest), thorough=True)
    assert isinstance(verdict, Mismatch)
    assert f"for {COLUMNS}" in verdict.case


STRIDED = {
    "transposed": (TensorSpec((31, 17), (1, 31), "float32"), "x[r * in[0].strides[0] + c * in[0].strides[1]]", Passed),
    "sliced": (TensorSpec((31, 17), (40, 2), "float32"), "x[r * in[0].strides[0] + c * in[0].strides[1]]", Passed),
    "expanded": (TensorSpec((31, 17), (0, 1), "float32"), "x[r * in[0].strides[0] + c * in[0].strides[1]]", Passed),
    "stride-blind": (TensorSpec((31, 17), (1, 31), "float32"), "x[r * 17 + c]", Mismatch),
}


@pytest.mark.parametrize("name", STRIDED)
def test_layouts(cpu: DeviceInfo, pool: WorkerPool, name: str):
    spec, element, expected = STRIDED[name]
    of = problem(lambda x: x * 2 + 1, spec)
    out = of.graph.output_specs[0].stride
    body = f"""
    const float* x = IN(0);
    for (int64_t r = 0; r < 31; ++r)
      for (int64_t c = 0; c < 17; ++c) OUT(0)[r * {out[0]} + c * {out[1]}] = {element} * 2 + 1;"""
    assert isinstance(judge_of(of, cpu, pool).check(build(body, of)), expected)


def test_integer_inputs_and_two_outputs(cpu: DeviceInfo, pool: WorkerPool):
    of = problem(lambda t, i: (t[i], i + 1), f32(50, 8), contiguous((20,), "int64"))
    body = """
    const int64_t* index = (const int64_t*)in[1].data;
    for (int r = 0; r < 20; ++r) {
      memcpy(OUT(0) + 8 * r, IN(0) + 8 * (index[r] < 0 ? index[r] + 50 : index[r]), 32);
      ((int64_t*)out[1].data)[r] = index[r] + 1;
    }"""
    judge = judge_of(of, cpu, pool)
    assert isinstance(judge.check(build(body, of), thorough=True), Passed)
    wrong = judge.check(build(body.replace("index[r] + 1;", "index[r] + 2;"), of))
    assert isinstance(wrong, Mismatch)
    assert wrong.output == 1


def test_the_gates_are_named(judge: Judge):
    assert {"is right", "same pointers", "keeps inputs"} <= set(judge.gates.met)
    assert judge.gates.off == ()


# --- the clock --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bench(cpu: DeviceInfo, pool: WorkerPool) -> Bench:
    return Bench(SOFTMAX, device=cpu, pool=pool, settings=SETTINGS)


DIMS = [ROWS, COLUMNS]


def test_all_configs_are_timed_and_the_slow_one_is_last(bench: Bench):
    idle = "for (volatile int k = 0; k < 3000000 * (config == 1); ++k);"
    measured = bench.compare(build(softmax_rows(finish=idle), SOFTMAX, configs=4), DIMS, range(4), seed=1, budget_s=0.6)
    assert sorted(c.config for c in measured.comparisons) == [0, 1, 2, 3]
    assert measured.faults == {}
    slow = measured.comparisons[-1]
    assert slow.config == 1
    assert slow.ratio_low <= slow.ratio <= slow.ratio_high < 1
    assert all(c.candidate.samples == c.eager.samples > 0 for c in measured.comparisons)


@pytest.mark.parametrize(
    "sham",
    ["memset(OUT(0), 0, 19200);", "memcpy(OUT(0), IN(0), 19200);", ""],
    ids=["then zeros", "then its input", "then nothing"],
)
def test_right_for_the_first_calls_only_is_a_fault(bench: Bench, sham: str):
    body = f"static int calls = 0; if (++calls > 20) {{ {sham} return 0; }} {softmax_rows()}"
    measured = bench.compare(build(body, SOFTMAX), DIMS, [0], seed=1, budget_s=0.3)
    assert measured.comparisons == ()
    assert isinstance(measured.faults[0], Refused)
    assert "timed call" in measured.faults[0].reason


def test_a_crash_while_timed_is_a_fault(bench: Bench):
    body = f"static int calls = 0; if (++calls > 20) abort(); {softmax_rows()}"
    measured = bench.compare(build(body, SOFTMAX), DIMS, [0], seed=1, budget_s=0.3)
    assert (measured.comparisons, type(measured.faults[0])) == ((), Crashed)


def test_eager_alone_as_a_peer(cpu: DeviceInfo, pool: WorkerPool):
    found = peers(SOFTMAX, device=cpu, pool=pool, seed=1, budget_s=0.2, inductor=False)
    assert found.eager_us > 0
    assert (found.inductor_us, found.inductor_over_eager) == (None, None)


LATE = "static float* kept; static int calls; if (++calls == 2) kept = OUT(0); else if (kept) kept[0] += 1;" + softmax_rows()
COUNTS = "static int calls; float bump = ++calls & 1 ? 1e-7f : 0;" + softmax_rows(finish="OUT(0)[3] += bump * OUT(0)[3];")
SAMPLED = f"""
    static float seen[64], kept[{ROWS * COLUMNS}]; static bool full;
    if (full && !memcmp(seen, IN(0), sizeof seen)) {{ memcpy(OUT(0), kept, sizeof kept); return FORGE_OK; }}
    {softmax_rows(finish="memcpy(seen, IN(0), sizeof seen); memcpy(kept, OUT(0), sizeof kept); full = true;")}"""
BLAMED = {
    "writes nothing": ("", "writes everything"),
    "reads too far": (softmax_rows().replace("; ++j) sum", "; ++j) sum += 0 * x[n], sum"), "reads inside"),
    "reads a page too far": (softmax_rows(finish="volatile float v = IN(0)[4096 / 4 + 24 * 200]; (void)v;"), "reads inside"),
    "remembers by pointer": (REMEMBERS, "same pointers"),
    "remembers by its first values": (SAMPLED, "same pointers"),
    "needs alignment": (f"if ((uintptr_t)in[0].data % 16) return 3; {softmax_rows()}", "misaligned"),
    "eats NaN": (EATS_NAN, "special values"),
    "writes too far": (softmax_rows(finish=f"OUT(0)[{ROWS * COLUMNS}] = 1;"), "stays inside"),
    "writes its input": (softmax_rows(finish="((float*)in[0].data)[5] += 1;"), "keeps inputs"),
    "changes an earlier result": (LATE, "kept outputs"),
    "never the same": (COUNTS, "repeats"),
    "leaves a file open": (softmax_rows(finish="static int fd = dup(1); (void)fd;"), "leaves no trace"),
    "a lower precision": (softmax_rows("bf16(x[j])"), "is right"),
    "segfault": ("*(volatile int*)0 = 1;", "survives"),
}  # fmt: skip


@pytest.mark.parametrize("name", BLAMED)
def test_the_gate_that_it_failed_is_named_and_is_the_only_thing_between_it_and_passing(
    cpu: DeviceInfo, pool: WorkerPool, judge: Judge, name: str
):
    body, gate = BLAMED[name]
    built = build(body, SOFTMAX)
    verdict = judge.check(built, thorough=True, blame=True)
    assert not isinstance(verdict, Passed)
    assert verdict.gate == gate, verdict
    if gate in ("is right", "survives", "writes everything", "kept outputs"):  # more than one gate would catch these
        return
    without = Judge(SOFTMAX, lowered=lowered(SOFTMAX), device=cpu, pool=pool, settings=SETTINGS, seed=11, off=(gate,))
    assert isinstance(without.check(built, thorough=True), Passed)


def test_gates_that_cannot_be_left_out_are_refused(cpu: DeviceInfo, pool: WorkerPool):
    for name, message in {"survives": "cannot be left out", "no such gate": "there is no gate"}.items():
        with pytest.raises(UsageError, match=message):
            Judge(SOFTMAX, lowered=None, device=cpu, pool=pool, settings=SETTINGS, seed=1, off=(name,))
