"""Kernels under AddressSanitizer and UndefinedBehaviorSanitizer: honest ones are clean, what is wrong is said in one line.

The wrong kernels here give right results: nothing but a tool that watches each access can see what they do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support import programs
from tests.support.kernels import HEAD, f32, problem
from torch_forge.generation.templates.engine import candidates
from torch_forge.machine.toolchain import Toolchain, find_toolchain
from torch_forge.machine.workers import WorkerPool
from torch_forge.records.kernels import Built, Candidate, Config, Origin
from torch_forge.records.outcomes import Crashed, Refused
from torch_forge.records.tensors import TensorSpec, contiguous
from torch_forge.settings import Settings
from torch_forge.validation.cases import Case
from torch_forge.validation.sanitize import SanitizerReport, SanitizerRun, sanitize
from torch_forge.validation.sanitizer_commands import HOST_TOOL

pytestmark = pytest.mark.compiler
ROWS, COLUMNS = 7, 41
COUNT = ROWS * COLUMNS
SCALE = problem(lambda x: x * 2, f32(ROWS, COLUMNS), name="scale")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(preload=("torch_forge.validation.sanitize_tasks",)) as running:
        running.start()
        yield running


@pytest.fixture(scope="module")
def toolchain() -> Toolchain:
    return find_toolchain(Settings(cache_dir=Path("unused")), "cpu", check=False)


def case_of(of=SCALE, distribution: str = "shifted", offset: int = 0) -> Case:
    name = f"{distribution}, misaligned" if offset else distribution
    return Case(name, distribution, 5, (offset,) * len(of.graph.inputs), of)


def unbuilt(candidate: Candidate) -> Built:
    """What is looked at on a CPU is the source."""
    return Built(candidate, "", "", 0.0, {})


def hand_written(body: str, **changes) -> Built:
    source = HEAD + (body if "LAUNCH" in body else f"LAUNCH {{\n{body}\nreturn FORGE_OK;\n}}\n")
    candidate = Candidate(SCALE.digest, "scale", "cpu", source, Origin.USER, "test", (Config({}, 4),))
    return unbuilt(replace(candidate, **changes))


@pytest.fixture
def check(pool: WorkerPool, toolchain: Toolchain, tmp_path: Path):
    def run(built: Built, *runs: SanitizerRun, config: int = 0, timeout_s: float = 60.0, **changes) -> SanitizerReport:
        runs = runs or (SanitizerRun(case_of(), (ROWS, COLUMNS)),)
        how = dict(toolchain=toolchain, pool=pool, staging_root=tmp_path / "staging", timeout_s=timeout_s, device=CPU)
        report = sanitize(built, config, runs, **{**how, **changes})
        assert list((tmp_path / "staging").glob("*")) == []
        return report

    return run


FIRST_LINE = str(HEAD.count("\n") + 2)
"""Of a kernel's body in its source."""
GOOD = f"for (int64_t i = 0; i < {COUNT}; ++i) OUT(0)[i] = 2 * IN(0)[i];"


def test_an_honest_kernel_is_clean(check):
    runs = [SanitizerRun(case_of(distribution=d, offset=o), (ROWS, COLUMNS)) for d, o in (("special", 0), ("shifted", 1))]
    report = check(hand_written(GOOD), *runs)
    assert (report.tools, report.missing, report.finding) == ((HOST_TOOL,), {}, None)


def in_bounds_of(case: programs.Case) -> SanitizerRun:
    return SanitizerRun(case_of(case.problem, offset=1), case.lowered.values)


TEMPLATES = {
    "row": lambda: programs.softmax(6, 4100),
    "row, half": lambda: programs.rms_norm(5, 771),
    "pointwise": lambda: programs.swiglu(20_011),
    "row, positions": lambda: programs.argmax(3, 301),
    "row, scan": lambda: programs.cumsum_normalised(2, 333),
}


@pytest.mark.slow
@pytest.mark.parametrize("make", TEMPLATES.values(), ids=TEMPLATES)
def test_templates_are_clean(check, make):
    case = make()
    for candidate in candidates(case.problem, case.lowered, programs.cpu_device()):
        for config in range(len(candidate.configs)):
            aligned = SanitizerRun(case_of(case.problem), case.lowered.values)
            runs = [aligned, in_bounds_of(case)] if config == 0 else [aligned]
            report = check(unbuilt(candidate), *runs, config=config)
            assert (report.tools, report.missing, report.finding) == ((HOST_TOOL,), {}, None)


UNSEEN = f"float unused = IN(0)[{COUNT}]; {GOOD} OUT(0)[0] = unused == 1.2345e30f ? 1 : OUT(0)[0];"
VECTOR = f"""typedef float four __attribute__((vector_size(16)));
LAUNCH {{
  const float* x = IN(0);
  for (int64_t i = 0; i + 4 <= {COUNT}; i += 4) {{ four v = 2 * *(const four*)(x + i); memcpy(OUT(0) + i, &v, 16); }}
  for (int64_t i = {COUNT} / 4 * 4; i < {COUNT}; ++i) OUT(0)[i] = 2 * x[i];
  return 0;
}}"""
PARALLEL = f"""
#pragma omp parallel for num_threads(threads)
for (int64_t r = 0; r < {ROWS}; ++r) for (int64_t j = 0; j <= {COLUMNS}; ++j)
  if (j < {COLUMNS} || IN(0)[r * {COLUMNS} + j] == 1.2345e30f) OUT(0)[r * {COLUMNS} + j] = 2 * IN(0)[r * {COLUMNS} + j];"""
KEPT = f"""static const float* before = nullptr; static float taken = 0;
if (before) taken = before[0]; {GOOD} before = IN(0); OUT(0)[0] += taken == 1.2345e30f;"""
DEEP = """static int64_t down(volatile char* above, int64_t left) {
  volatile char frame[4096]; frame[left % 4096] = above[0];
  return left ? down(frame, left - 1) + frame[left % 4096] : 0;
}
LAUNCH { char first = 0; return down(&first, 1 << 20) == 1; }"""
FOUND: dict[str, tuple[str, str]] = {
    "one element past an input": (UNSEEN, "reads 4 bytes 0 bytes past the end of input 0 .*, kernel.cpp:LINE"),
    "one element before an input": (UNSEEN.replace(f"[{COUNT}]", "[-1]"), "reads 4 bytes 4 bytes before input 0"),
    "a row further": (UNSEEN.replace(f"[{COUNT}]", f"[{COUNT + 4096}]"), "16384 bytes past the end of input 0"),
    "in a thread": (PARALLEL, "reads 4 bytes 0 bytes past the end of input 0"),
    "past an output": (f"{GOOD} OUT(0)[{COUNT}] = 1;", "writes 4 bytes 0 bytes past the end of output 0"),
    "a size that is not there": (f"{GOOD} if (in[0].sizes[2] == -9) return 1;", "reads 8 bytes .*heap-buffer-overflow"),
    "a dim that is not there": (f"{GOOD} if (dims[2] == -9) return 1;", "reads 8 bytes .*heap-buffer-overflow"),
    "freed memory": (
        f"int* p = (int*)malloc(8); free(p); int n = *(volatile int*)p; {GOOD} if (n == 1234567) return 1;",
        "reads 4 bytes .*heap-use-after-free",
    ),
    "a local array": (
        f"volatile int a[4]; for (int i = 0; i <= 4; ++i) a[i * (int)threads / 3] = i; {GOOD}",
        "kernel.cpp:LINE",
    ),
    "shift": (f"{GOOD} volatile int n = 40; volatile int v = 1 << n;", "shift exponent 40 is too large .*kernel.cpp:LINE"),
    "index overflow": (
        f"{GOOD} int n = in[0].sizes[0]; volatile int far = n * 1000000000 / 7;",
        r"signed integer overflow: 7 \* 1000000000 .*kernel.cpp:LINE",
    ),
    "division by zero": (f"{GOOD} volatile int n = 0; volatile int v = 7 / n;", "division by zero"),
    "null": (f"{GOOD} if (threads < 0) return 1; *(volatile char*)workspace = 1;", "SEGV|null pointer"),
    "stack overflow": (DEEP, "stack-overflow"),
    "nothing at all": ("", "it writes nothing to output 0"),
    "an error code": ("return FORGE_UNSUPPORTED;", "it does not serve these inputs"),
    "no forge_launch": ('#undef LAUNCH\n#define LAUNCH extern "C" int other()\nLAUNCH { return 0; }', "forge_launch"),
    "not C++": ("LAUNCH { nonsense }", "it does not build with sanitizers: .*nonsense"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_what_is_found_is_said_in_one_line(check, name: str):
    body, words = FOUND[name]
    report = check(hand_written(body))
    assert isinstance(report.finding, Refused), report
    assert (report.tools, report.missing, report.finding.gate) == ((), {}, "sanitizers")
    assert "\n" not in report.finding.reason
    assert re.search(words.replace("LINE", FIRST_LINE), report.finding.reason), report.finding.reason


PASTED = f"""#define JOIN(a, b) a##b
__attribute__((JOIN(no_, sanitize)("address"))) LAUNCH {{ {UNSEEN} return 0; }}"""
SPLICED = f"""__attribute__((no_sani\\
tize("address"))) LAUNCH {{ {UNSEEN} return 0; }}"""
ASKS = f"""LAUNCH {{
#ifdef __SANITIZE_ADDRESS__
  {GOOD} return 0;
#endif
  {UNSEEN} return 0; }}"""


@pytest.mark.parametrize("body", [PASTED, SPLICED, ASKS], ids=["switched off", "in two lines", "asked for"])
def test_a_kernel_cannot_behave_or_hide_because_it_is_watched(check, body: str):
    finding = check(hand_written(body)).finding
    assert isinstance(finding, Refused)
    assert re.search("past the end of input 0|its source says", finding.reason)


@pytest.mark.parametrize(("body", "signal"), [("abort();", 6), ("_exit(0);", 0), ("exit(3);", 0)], ids=["abort", "0", "3"])
def test_a_process_that_ends_without_a_report_has_crashed(check, body: str, signal: int):
    finding = check(hand_written(f"{GOOD} {body}")).finding
    assert isinstance(finding, Crashed), finding
    assert (finding.signal, finding.gate) == (signal, "sanitizers")


def test_each_config_is_watched_by_itself(check):
    built = hand_written(f"if (config == 1) {{ {UNSEEN} }} else {{ {GOOD} }}", configs=(Config({}, 4), Config({}, 4)))
    assert check(built).finding is None
    assert check(built, config=1).finding is not None
    assert check(built, SanitizerRun(case_of(offset=1), (ROWS, COLUMNS)), config=1).finding is None


def test_the_workspace_is_no_larger_than_declared(check):
    body = f"((char*)workspace)[99] = 1; {GOOD} if (((char*)workspace)[threads * 33 + 1] == 77) return 1;"
    assert check(hand_written(body, workspace_bytes=101)).finding is None
    finding = check(hand_written(body, workspace_bytes=100)).finding
    assert isinstance(finding, Refused)
    assert "0 bytes past the end of workspace" in finding.reason


def test_a_misaligned_vector_access_is_found_where_the_pointer_is_misaligned(check):
    assert check(hand_written(VECTOR)).finding is None
    finding = check(hand_written(VECTOR), SanitizerRun(case_of(offset=1), (ROWS, COLUMNS))).finding
    assert isinstance(finding, Refused)
    assert "misaligned address" in finding.reason
    assert "(shifted, misaligned)" in finding.reason


def test_views_and_empty_tensors(check):
    padded = TensorSpec((5, 9), (16, 1), "float32")
    of = problem(lambda x, y: (x * 2, y + 1), padded, contiguous((0, 3), "float32"), name="views")
    body = """for (int r = 0; r < 5; ++r) for (int j = 0; j < {n}; ++j) {{
      volatile float v = IN(0)[r * 16 + j]; if (j < 9) OUT(0)[r * 9 + j] = 2 * v; }}"""
    run = SanitizerRun(case_of(of), (5, 9, 0, 3))
    assert check(hand_written(body.format(n=9)), run).finding is None
    finding = check(hand_written(body.format(n=10)), run).finding
    assert isinstance(finding, Refused)
    assert "0 bytes past the end of input 0" in finding.reason


@pytest.mark.slow
def test_a_kernel_that_hangs_on_a_later_case_is_neither_clean_nor_found_guilty(check):
    """The limit holds for the builds too, so it is far above what they take on a busy machine."""
    body = f"{GOOD} while (IN(0)[0] == 0) *(volatile float*)OUT(0) = 1;"
    runs = [SanitizerRun(case_of(), (ROWS, COLUMNS)), SanitizerRun(case_of(distribution="one_hot"), (ROWS, COLUMNS))]
    report = check(hand_written(body), *runs, timeout_s=30.0)
    assert (report.tools, report.finding) == ((), None)
    assert report.missing == {HOST_TOOL: "it came through 1 of 2 cases within 30 s"}


def compiler_that(toolchain: Toolchain, folder: Path, script: str) -> Toolchain:
    """``script`` before every call of the compiler."""
    path = folder / "cxx"
    path.write_text(f'#!/bin/sh\n{script}\nexec {toolchain.cxx} "$@"\n')
    path.chmod(0o700)
    return replace(toolchain, cxx=str(path))


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("case \"$*\" in *fsanitize*) echo 'ld: error: cannot find -lasan' >&2; exit 1;; esac", "does not build: .*-lasan"),
        (
            'case "$*" in *"-o driver"*) printf "#!/bin/sh\\necho cannot map it" > driver; chmod 700 driver; exit;; esac',
            "cannot work here: cannot map it",
        ),
    ],
    ids=["no library", "does not start"],
)
def test_a_machine_without_sanitizers_says_why_and_blames_nobody(check, toolchain: Toolchain, tmp_path: Path, script, why):
    report = check(hand_written(UNSEEN), toolchain=compiler_that(toolchain, tmp_path, script))
    assert (report.tools, report.finding) == ((), None)
    assert list(report.missing) == [HOST_TOOL]
    assert re.search(why, report.missing[HOST_TOOL])
