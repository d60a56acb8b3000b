"""The CPU templates compiled with g++ and run: right values at awkward sizes, vector code, the contract's edges."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess

import pytest
import torch

from tests.support import programs
from tests.support.launching import COMMON, CPU, Kernel, build, difference, outputs_for, run_all_configs
from torch_forge.generation.templates.engine import candidates

pytestmark = pytest.mark.compiler

INDEX_ERROR, BAD_CONFIG = 1, 2
CPU_DEVICE = programs.cpu_device()
STREAMING_DEVICE = programs.cpu_device(l2_bytes=1)


def check(case: programs.Case, folder, device=CPU_DEVICE) -> None:
    failures = [
        failure
        for candidate in candidates(case.problem, case.lowered, device)
        for failure in run_all_configs(case, candidate, Kernel(build(candidate.source, folder, CPU)))
    ]
    assert not failures


# One size per program, chosen so that full blocks, full lanes and a tail all occur; the small ones are below.
ROW_SIZES = {
    "softmax_f32": (5, 4100), "softmax_bf16": (3, 300), "softmax_f16": (3, 77), "softmax_f64": (2, 129),
    "softmax_padded": (4, 65),
    "rms_norm": (3, 4099), "add_layer_norm_f32": (3, 2049), "int8_quant": (3, 500), "argmax": (3, 301),
    "cumsum_f32": (2, 4100),
    "cumsum_i64": (2, 100), "cumsum_normalised": (2, 333), "cross_entropy": (4, 1003),
    "row_any": (3, 100), "causal_softmax": (9, 40),
    "embed_norm": (6, 31),
}  # fmt: skip


@pytest.mark.parametrize("name", ROW_SIZES)
def test_row_program(name, tmp_path):
    check(programs.ROW_BUILDERS[name](*ROW_SIZES[name]), tmp_path)


@pytest.mark.parametrize("name", ["gelu_f32", "gelu_f64", "swiglu_f16", "int_ops_i8", "compare", "two_parts"])
def test_flat_program(name, tmp_path):
    check(programs.FLAT_BUILDERS[name](20_011), tmp_path)


@pytest.mark.parametrize("name", programs.GRID_BUILDERS)
def test_grid_program(name, tmp_path):
    check(programs.GRID_BUILDERS[name](7, 45), tmp_path)


def test_quotient_of_the_row(tmp_path):
    check(programs.group_norm(3, 6, 50), tmp_path)


def test_no_loop_at_all(tmp_path):
    check(programs.scalar(), tmp_path)


def test_streamed_results(tmp_path):
    """The config that stores past the caches, on results that begin off a vector boundary."""
    case = programs.swiglu(5003)
    (candidate,) = candidates(case.problem, case.lowered, STREAMING_DEVICE)
    kernel = Kernel(build(candidate.source, tmp_path, CPU))
    whole = torch.zeros(5003 + 16, dtype=torch.bfloat16)
    for offset in (0, 1, 7):
        out = whole[offset : offset + 5003].fill_(float("nan"))
        assert kernel(case.inputs, [out], case.lowered.values, config=1) == 0
        assert not difference(case, [out])


def test_one_build_serves_every_number_of_rows_and_any_alignment(tmp_path):
    """Sizes that are not compiled in: none, one, odd; inputs and results that start at an odd element."""
    build_for = {
        "softmax_bf16": lambda r: programs.softmax(r, 40, torch.bfloat16),
        "bias_add": lambda r: programs.bias_add(r, 40),
    }
    for name, builder in build_for.items():
        candidate = candidates(builder(2).problem, builder(2).lowered, CPU_DEVICE)[0]
        kernel = Kernel(build(candidate.source, tmp_path, CPU))
        for rows in (0, 1, 3, 257):
            case = builder(rows)
            inputs = [shifted(t) for t in case.inputs]
            outputs = [shifted(t) for t in outputs_for(case)]
            assert kernel(inputs, outputs, case.lowered.values) == 0, name
            assert not difference(case, outputs), (name, rows)


def shifted(t: torch.Tensor) -> torch.Tensor:
    """A copy that starts one element into its allocation."""
    return torch.cat((t.reshape(-1)[:1], t.reshape(-1)))[1:].view(t.shape) if t.numel() else t


def test_the_number_of_threads_changes_no_bit(tmp_path):
    case = programs.rms_norm(67, 2111)
    (candidate,) = candidates(case.problem, case.lowered, CPU_DEVICE)
    kernel = Kernel(build(candidate.source, tmp_path, CPU))
    results = []
    for threads in (1, 2, 3):
        outputs = outputs_for(case)
        assert kernel(case.inputs, outputs, case.lowered.values, threads=threads) == 0
        results.append(outputs[0].view(torch.int16))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_an_index_outside_the_table_is_an_index_error(tmp_path):
    case = programs.gather(6, 8)
    kernel = Kernel(build(candidates(case.problem, case.lowered, CPU_DEVICE)[0].source, tmp_path, CPU))
    ids, table = case.inputs
    for bad in (50, -51, 2**40):
        wrong = ids.clone()
        wrong[3] = bad
        assert kernel([wrong, table], outputs_for(case), case.lowered.values) == INDEX_ERROR
    assert kernel([ids, table[:0]], outputs_for(case), (6, 8, 0)) == INDEX_ERROR


def test_an_unknown_config_is_refused(tmp_path):
    case = programs.gelu(5)
    kernel = Kernel(build(candidates(case.problem, case.lowered, CPU_DEVICE)[0].source, tmp_path, CPU))
    for config in (-1, 1, 99):
        assert kernel(case.inputs, outputs_for(case), case.lowered.values, config=config) == BAD_CONFIG


def test_special_values_come_through(tmp_path):
    """NaN, infinities, zeros of both signs, denormals: gelu and softmax agree with torch on all of them."""
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40, -1e-40, 3e38, -3e38, 1.0])
    x = torch.stack([special.roll(k) for k in range(10)])
    x[0] = 1.0
    x[1] = -float("inf")
    case = programs.softmax(10, 10)
    kernel = Kernel(build(candidates(case.problem, case.lowered, CPU_DEVICE)[0].source, tmp_path, CPU))
    out = torch.empty(10, 10)
    assert kernel([x], [out], case.lowered.values) == 0
    torch.testing.assert_close(out, torch.softmax(x, -1), equal_nan=True, rtol=1e-6, atol=1e-7)


@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump")
@pytest.mark.parametrize(
    "name", ["softmax_f32", "rms_norm", "add_layer_norm_bf16", "gelu_f32", "swiglu_bf16", "swiglu_f16", "int8_quant"]
)
def test_hot_loops_are_vector_code(name, tmp_path):
    """Most floating-point arithmetic in the library is packed."""
    builder = programs.ROW_BUILDERS.get(name)
    case = builder(8, 1024) if builder else programs.FLAT_BUILDERS[name](4096)
    library = build(candidates(case.problem, case.lowered, CPU_DEVICE)[0].source, tmp_path, CPU)
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", str(library)], capture_output=True, text=True, check=True
    ).stdout
    if "xmm" not in listing:
        pytest.skip("not an x86 library")
    packed = len(re.findall(r"\bv?(?:add|sub|mul|div|fn?m(?:add|sub)\d+|max|min)ps\b", listing))
    assert packed > 10
    assert "expf" not in listing


SWEEP = r"""
#include "forge.h"
#include "forge_math.h"
#include <cmath>

/* Units in the last place of the rounded result between a float function and double precision, at worst. */
template <class F, class G> static double worst(F f, G g, uint32_t step) {
  double most = 0;
#pragma omp parallel for num_threads(2) reduction(max : most)
  for (int64_t k = 0; k < (int64_t(1) << 32); k += step) {
    const float x = forge_as_float(uint32_t(k)), got = f(x);
    const double want = g(double(x));
    const float rounded = float(want);
    double error = 0;
    if (rounded != rounded || got != got) {
      error = (rounded != rounded) == (got != got) ? 0 : 1e9;
    } else if (__builtin_isinf(rounded) || __builtin_isinf(got)) {
      error = rounded == got || (std::fabs(want) > 3.4028e38 && std::fabs(got) > 3.4028e38f) ? 0 : 1e9;
    } else if (want == 0 && got == 0) {
      error = std::signbit(want) == std::signbit(got) ? 0 : 1e9;
    } else {
      int exponent;
      std::frexp(rounded, &exponent);
      error = std::fabs(double(got) - want) / std::ldexp(1.0, (exponent < -125 ? -125 : exponent) - 24);
    }
    most = error > most ? error : most;
  }
  return most;
}
#define SWEEP(NAME) extern "C" double sweep_##NAME(uint32_t step) { \
  return worst([](float x) { return forge_##NAME(x); }, [](double x) { return std::NAME(x); }, step); }
SWEEP(exp) SWEEP(exp2) SWEEP(expm1) SWEEP(log) SWEEP(log2) SWEEP(log10) SWEEP(log1p) SWEEP(tanh) SWEEP(erf)

/* Floats (every step-th) that do not survive the way to 16 bits and back as the compiler's own conversion says. */
extern "C" int64_t sweep_f16(uint32_t step) {
  int64_t bad = 0;
#pragma omp parallel for num_threads(2) reduction(+ : bad)
  for (int64_t k = 0; k < (int64_t(1) << 32); k += step) {
    const float x = forge_as_float(uint32_t(k));
    const _Float16 want = _Float16(x);
    uint16_t bits;
    memcpy(&bits, &want, 2);
    const uint16_t got = forge_to_f16(x);
    const bool nan = x != x;
    const bool same = got == bits && forge_from_f16(bits) == float(want) && forge_round_f16(x) == float(want);
    bad += nan ? (got & 0x7fff) <= 0x7c00 : !same;
  }
  return bad;
}
"""


@pytest.fixture(scope="module")
def math_library(tmp_path_factory):
    import ctypes

    library = ctypes.CDLL(str(build(SWEEP, tmp_path_factory.mktemp("math"), CPU)))
    library.sweep_f16.restype = ctypes.c_int64
    return library


# A prime step visits every exponent and many mantissas of all floats: about 10 million of them.
STEP = 409


@pytest.mark.parametrize("name", ["exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "erf"])
def test_float_function_is_within_two_units_everywhere(name, math_library):
    import ctypes

    sweep = getattr(math_library, f"sweep_{name}")
    sweep.restype = ctypes.c_double
    assert sweep(STEP) < 2.1


def test_half_conversions_round_to_nearest_even(math_library):
    assert math_library.sweep_f16(97) == 0


def test_bfloat16_conversion_agrees_with_torch(tmp_path):
    """Every upper half of a float with lower halves around the ties."""
    upper = torch.arange(-(2**15), 2**15, dtype=torch.int32) << 16
    x = torch.cat([upper | low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]).view(torch.float32)
    body = [programs.op("y", "cast", "v0", dtype="bfloat16")]
    case = programs.flat(x.numel(), lambda t: t.to(torch.bfloat16), body, x, torch.bfloat16, "cast")
    check(case, tmp_path)


def test_sources_compile_without_warnings(tmp_path):
    cases = itertools.chain(
        (builder(3, 40) for builder in list(programs.ROW_BUILDERS.values())[:4]),
        (programs.concat(3, 8, 9), programs.two_parts(5, 6)),
    )
    for case in cases:
        source = candidates(case.problem, case.lowered, STREAMING_DEVICE)[0].source
        file = tmp_path / "kernel.cpp"
        file.write_text(source)
        command = [
            "g++",
            "-fsyntax-only",
            "-fopenmp",
            "-Wall",
            "-Wextra",
            "-Wno-unused-parameter",
            "-Wno-unknown-pragmas",
            *COMMON,
            str(file),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "warning" not in done.stderr, done.stderr
