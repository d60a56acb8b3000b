"""CUDA kernels under compute-sanitizer: what is wrong here gives right results, so that nothing but these tools can tell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support import programs
from tests.support.kernels import f32, problem
from torch_forge.compilation.build import build
from torch_forge.generation.templates.engine import candidates
from torch_forge.machine.cuda_toolkit import find_compute_sanitizer
from torch_forge.machine.device import device_info
from torch_forge.machine.toolchain import Toolchain, find_toolchain
from torch_forge.machine.workers import WorkerPool
from torch_forge.records.kernels import Built, Candidate, Config, Origin
from torch_forge.records.outcomes import Refused
from torch_forge.settings import Settings
from torch_forge.validation.cases import Case
from torch_forge.validation.sanitize import SanitizerReport, SanitizerRun, sanitize
from torch_forge.validation.sanitizer_commands import DEVICE_TOOLS

pytestmark = [pytest.mark.gpu, pytest.mark.nvcc, pytest.mark.slow]
ROWS, COLUMNS = 13, 256
SUMS = problem(lambda x: x.sum(-1), f32(ROWS, COLUMNS), name="sums")
SETTINGS = Settings(cache_dir=Path("unused"))
SOURCE = """
#include "forge.h"
#include <cuda_runtime.h>
__global__ void sums(const float* x, float* y, int rows, float* w) {
  __shared__ float part[256];
  const int t = threadIdx.x, r = blockIdx.x;
  part[t] = x[r * 256 + t];
  KERNEL
  if (t == 0) y[r] = part[0];
}
extern "C" int forge_launch(const ForgeTensor* in, const ForgeTensor* out, const int64_t* dims, int64_t config,
                            int64_t threads, void* workspace, void* stream) {
  sums<<<dims[0], 256, 0, (cudaStream_t)stream>>>((const float*)in[0].data, (float*)out[0].data, dims[0], (float*)workspace);
  const cudaError_t e = cudaGetLastError();
  return e ? FORGE_CUDA_ERROR + e : FORGE_OK;
}
"""
STEP = "for (int s = 128; s > 0; s /= 2) { BARRIER if (t < s) part[t] += part[t + s]; }\n__syncthreads();"
GOOD = STEP.replace("BARRIER", "__syncthreads();")
WRONG: dict[str, tuple[str, str, str]] = {
    "reads past an input": (f"{GOOD} if (x[rows * 256] == 1.5e30f) part[0] = 0;", "memcheck", "past the end of input 0"),
    "writes past an output": (f"{GOOD} if (t == 1) y[rows] = 0;", "memcheck", "past the end of output 0"),
    "no barrier between steps": (STEP.replace("BARRIER", ""), "racecheck", "Race reported between"),
    "uninitialised workspace": (f"{GOOD} if (w[t] == 1.5e30f) part[0] = 0;", "initcheck", "Uninitialized __global__"),
    "uninitialised output": (f"{GOOD} if (t == 0 && y[r] == 1.5e30f) part[0] = 0;", "initcheck", "in output 0"),
    "barrier for some": (f"{GOOD} if (t < 40) __syncthreads();", "synccheck", "Divergent thread(s)"),
}


@pytest.fixture(scope="module")
def toolchain() -> Toolchain:
    found = find_toolchain(SETTINGS, "cuda", device_info("cuda", SETTINGS), check=False)
    if not find_compute_sanitizer(found.cuda_home or "")[0]:
        pytest.skip("there is no compute-sanitizer")
    return found


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(preload=("torch_forge.compilation.tasks",)) as running:
        running.start()
        yield running


@pytest.fixture
def check(pool: WorkerPool, toolchain: Toolchain, tmp_path: Path):
    def run(candidate: Candidate, *runs: SanitizerRun, config: int = 0) -> SanitizerReport:
        built = build(candidate, toolchain, pool, staging_root=tmp_path, timeout_s=120.0)
        assert isinstance(built, Built), built
        return sanitize(
            built,
            config,
            runs,
            toolchain=toolchain,
            pool=pool,
            staging_root=tmp_path,
            timeout_s=120.0,
            device=torch.device("cuda", 0),
        )

    return run


def case_of(of, offset: int = 0) -> Case:
    return Case("misaligned" if offset else "shifted", "shifted", 5, (offset,) * len(of.graph.inputs), of)


def hand_written(kernel: str) -> Candidate:
    source = SOURCE.replace("KERNEL", kernel)
    candidate = Candidate(SUMS.digest, "sums", "cuda", source, Origin.USER, "test", (Config({}, 4),))
    return replace(candidate, workspace_bytes=1024)


def test_an_honest_kernel_is_clean_under_every_tool(check):
    runs = [SanitizerRun(case_of(SUMS, offset), (ROWS, COLUMNS)) for offset in (0, 1)]
    report = check(hand_written(GOOD), *runs)
    assert (report.tools, report.missing, report.finding) == (DEVICE_TOOLS, {}, None)


@pytest.mark.parametrize("name", WRONG)
def test_each_tool_finds_what_it_is_for(check, name: str):
    kernel, tool, words = WRONG[name]
    report = check(hand_written(kernel), SanitizerRun(case_of(SUMS), (ROWS, COLUMNS)))
    assert isinstance(report.finding, Refused), report
    assert report.finding.reason.startswith(f"{tool}: "), report.finding.reason
    assert words in report.finding.reason
    assert "cuda.cu:" in report.finding.reason
    assert report.missing == {}


@pytest.mark.parametrize(
    "make", [lambda: programs.softmax(13, 1000), lambda: programs.swiglu(20_011)], ids=["row", "pointwise"]
)
def test_templates_are_clean(check, make):
    case = make()
    device = device_info("cuda", SETTINGS)
    for candidate in candidates(case.problem, case.lowered, device)[:2]:
        for config in range(min(3, len(candidate.configs))):
            report = check(candidate, SanitizerRun(case_of(case.problem), case.lowered.values), config=config)
            assert (report.tools, report.missing, report.finding) == (DEVICE_TOOLS, {}, None)
