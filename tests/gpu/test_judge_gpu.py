"""The judge and the clock on CUDA kernels: streams, launch errors and memory are what a CPU cannot show."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.kernels import INCLUDE, f32, lowered, problem
from torch_forge.benchmarking.pairs import Bench
from torch_forge.benchmarking.peers import peers
from torch_forge.machine.device import device_info
from torch_forge.machine.workers import WorkerPool
from torch_forge.records.kernels import Built, Candidate, Config, Origin
from torch_forge.records.outcomes import Crashed, Mismatch, Passed, Refused, Verdict
from torch_forge.records.problem import Problem
from torch_forge.settings import Settings
from torch_forge.validation.judge import Judge

pytestmark = [pytest.mark.gpu, pytest.mark.nvcc]
N = 1 << 20
GELU = problem(torch.nn.functional.gelu, f32(N), name="gelu")
SETTINGS = Settings(cache_dir=Path("unused"))
SOURCE = """
#include "forge.h"
#include <cuda_runtime.h>
__global__ void gelu(const float* x, float* y, int64_t n) {
  int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i < n) y[i] = ELEMENT;
}
extern "C" int forge_launch(const ForgeTensor* in, const ForgeTensor* out, const int64_t* dims, int64_t config,
                            int64_t threads, void* workspace, void* stream) {
  const float* x = (const float*)in[0].data; float* y = (float*)out[0].data; int64_t n = in[0].sizes[0];
  LAUNCH
}
"""
ELEMENT = "0.5f * x[i] * (1.f + erff(x[i] * 0.70710678f))"
LAUNCH = """
  gelu<<<(n + 255) / 256, 256, 0, (cudaStream_t)stream>>>(x, y, n);
  cudaError_t e = cudaGetLastError();
  return e ? FORGE_CUDA_ERROR + e : FORGE_OK;"""


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("kernels")

    def compile_(element: str = ELEMENT, launch: str = LAUNCH) -> Built:
        source = SOURCE.replace("ELEMENT", element).replace("LAUNCH\n", launch + "\n")
        stem = folder / hashlib.sha256(source.encode()).hexdigest()[:12]
        stem.with_suffix(".cu").write_text(source)
        command = ["nvcc", "-std=c++17", "-O2", "-Xcompiler", "-fPIC", "-shared", "-arch=native", f"-I{INCLUDE}"]
        subprocess.run([*command, str(stem.with_suffix(".cu")), "-o", str(stem.with_suffix(".so"))], check=True)
        candidate = Candidate(GELU.digest, "gelu", "cuda", source, Origin.USER, "test", (Config({}, 4),))
        return Built(candidate, str(stem.with_suffix(".so")), "", 0.0, {})

    return compile_


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool() as running:
        running.start()
        yield running


def judge_of(of: Problem, pool: WorkerPool) -> Judge:
    return Judge(
        of, lowered=lowered(of), device=device_info("cuda", SETTINGS, measure=False), pool=pool, settings=SETTINGS, seed=3
    )


@pytest.fixture(scope="module")
def judge(pool: WorkerPool) -> Judge:
    return judge_of(GELU, pool)


def test_an_honest_kernel_passes(judge: Judge, build):
    verdict = judge.check(build(), thorough=True)
    assert isinstance(verdict, Passed), verdict


WRONG: dict[str, tuple[str, str, type[Verdict]]] = {
    "zeros": ("0.f", LAUNCH, Mismatch),
    "half precision": ("0.5f * x[i] * (1.f + erff(0.70710678f * (float)(int)(x[i] * 1024) / 1024))", LAUNCH, Mismatch),
    "the default stream": (ELEMENT, LAUNCH.replace("(cudaStream_t)stream", "(cudaStream_t)0"), Mismatch),
    "never launched": (
        ELEMENT,
        "gelu<<<(n + 2047) / 2048, 2048, 0, (cudaStream_t)stream>>>(x, y, n); return FORGE_OK;",
        Mismatch,
    ),
    "a launch error": (ELEMENT, LAUNCH.replace("256, 0", "2048, 0"), Refused),
    "an illegal address": ("x[i + (1ll << 40)]", LAUNCH, Crashed),
    "another element": ("x[i + 1]", LAUNCH, Mismatch),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_has_its_verdict(judge: Judge, build, name: str):
    element, launch, kind = WRONG[name]
    assert isinstance(judge.check(build(element, launch)), kind)


def test_a_kernel_is_timed_in_device_time(pool: WorkerPool, build):
    bench = Bench(GELU, device=device_info("cuda", SETTINGS, measure=False), pool=pool, settings=SETTINGS)
    measured = bench.compare(build(), [N], [0], seed=1, budget_s=0.5)
    assert measured.faults == {}
    (comparison,) = measured.comparisons
    assert 0.3 < comparison.ratio < 3
    assert 1 < comparison.candidate.median_us < 100


def test_work_on_another_stream_does_not_escape_the_clock(pool: WorkerPool, build):
    slowly = "[&] { float v = x[i]; for (int k = 0; k < 4000; ++k) v += 0.f * erff(v); return v; }()"
    element = ELEMENT.replace("x[i] *", f"{slowly} *", 1)
    launch = """
    static cudaStream_t other;
    if (!other) cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    gelu<<<(n + 255) / 256, 256, 0, other>>>(x, y, n);
    return FORGE_OK;"""
    bench = Bench(GELU, device=device_info("cuda", SETTINGS, measure=False), pool=pool, settings=SETTINGS)
    measured = bench.compare(build(element, launch), [N], [0], seed=1, budget_s=0.5)
    assert measured.comparisons == ()
    assert isinstance(measured.faults[0], Refused)


def test_eager_and_inductor_are_measured_together(pool: WorkerPool):
    found = peers(GELU, device=device_info("cuda", SETTINGS, measure=False), pool=pool, seed=1)
    assert found.eager_us > 0
    assert found.inductor_us is not None, found.note
