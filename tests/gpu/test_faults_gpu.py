"""Faults on the device: the candidate has its verdict, the next one in the same pool a clean device, the user's context too.

An illegal address poisons a CUDA context for good. It is the worker's, which ends; nobody else's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests.support.kernels import f32, problem
from torch_forge.compilation.build import build_many
from torch_forge.records.kernels import Built, Candidate, Config, Origin
from torch_forge.records.outcomes import Crashed, Passed, TimedOut, Verdict
from torch_forge.search.workshop import Workshop
from torch_forge.settings import Settings
from torch_forge.validation.judge import Judge

pytestmark = [pytest.mark.gpu, pytest.mark.nvcc, pytest.mark.slow]
N = 1 << 20
COPY = problem(lambda x: x * 1, f32(N), name="copy")
CONFIGS = (Config({"variant": 0}, 4), Config({"variant": 1}, 4), Config({"variant": 2}, 4))
LIMIT_S = 60.0
GIVEN_BACK_S = 60.0
SOURCE = """
#include "forge.h"
#include <cuda_runtime.h>
__global__ void copy(const float* x, float* y, int64_t n, int64_t config) {
  int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i >= n) return;
  y[i] = x[i];
  FAULT
}
extern "C" int forge_launch(const ForgeTensor* in, const ForgeTensor* out, const int64_t* dims, int64_t config,
                            int64_t threads, void* workspace, void* stream) {
  copy<<<(unsigned)((dims[0] + 255) / 256), 256, 0, (cudaStream_t)stream>>>(
      (const float*)in[0].data, (float*)out[0].data, dims[0], config);
  cudaError_t e = cudaGetLastError();
  return e ? FORGE_CUDA_ERROR + (int)e : FORGE_OK;
}
"""
FAULTS: dict[str, tuple[str, type[Verdict]]] = {
    "illegal address": ("y[i + (1ll << 44)] = 0;", Crashed),
    "null": ("if (i == 7) *(volatile float*)nullptr = 0;", Crashed),
    "misaligned address": ("*(volatile double*)((char*)y + 4 * (i & ~1ll) + 1) = 0;", Crashed),
    "trap": ("if (i == 7) __trap();", Crashed),
    "endless loop": ("for (volatile int k = 0; n > 0; ++k) {}", TimedOut),
}
"""What a kernel does after its work, and what becomes of it."""
SECOND = "a fault in config 1"


@dataclass(frozen=True)
class Bench:
    """A judge, and what there is to be judged."""

    judge: Judge
    built: dict[str, Built]
    users: torch.Tensor
    """Of the user's process, on the device since before the first fault."""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    users = torch.arange(N, device="cuda")
    settings = Settings.resolve({}, cache_dir=tmp_path_factory.mktemp("cache"), trial_timeout_s=LIMIT_S)
    texts = {"none": "", **{name: fault for name, (fault, _) in FAULTS.items()}}
    texts[SECOND] = f"if (config == 1) {{ {texts['null']} }}"
    with Workshop.open("cuda", settings) as shop:
        assert shop.can_build()
        assert shop.toolchain is not None
        names = {candidate(text).digest: name for name, text in texts.items()}
        results = build_many(
            [candidate(text) for text in texts.values()],
            shop.toolchain, shop.pool, staging_root=Path(shop.staging), timeout_s=240, jobs=4,
        )  # fmt: skip
        built = {names[c.digest]: outcome for c, outcome in results}
        assert all(isinstance(outcome, Built) for outcome in built.values()), built
        judge = Judge(COPY, lowered=None, device=shop.device, pool=shop.pool, settings=settings, seed=5)
        yield Bench(judge, built, users)


def candidate(fault: str) -> Candidate:
    return Candidate(COPY.digest, "copy", "cuda", SOURCE.replace("FAULT", fault), Origin.USER, "test", CONFIGS)


def the_user_can_go_on(users: torch.Tensor) -> bool:
    """Old tensors are what they were, and new work is done."""
    fresh = torch.ones(1 << 16, device="cuda").cumsum(0)
    return int(users.sum()) == N * (N - 1) // 2 and float(fresh[-1]) == 1 << 16


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_the_candidate_s_alone(bench: Bench, fault: str):
    free = torch.cuda.mem_get_info()[0]
    verdict = bench.judge.check(bench.built[fault])
    assert isinstance(verdict, FAULTS[fault][1]), verdict
    assert the_user_can_go_on(bench.users)
    following = bench.judge.check(bench.built["none"])
    assert isinstance(following, Passed), following
    deadline = time.monotonic() + GIVEN_BACK_S
    while torch.cuda.mem_get_info()[0] < free - (64 << 20):
        assert time.monotonic() < deadline, "a dead worker still holds memory of the device"
        time.sleep(0.2)


def test_faults_side_by_side_spoil_nobody_s_verdict(bench: Bench):
    """The second candidate is judged while the first one's context is being torn down."""
    for _ in range(3):
        assert isinstance(bench.judge.check(bench.built["illegal address"]), Crashed)
        assert isinstance(bench.judge.check(bench.built["none"]), Passed)
    assert the_user_can_go_on(bench.users)


def test_only_the_config_with_the_fault_is_to_blame(bench: Bench):
    """The error sticks to the process, which the other configs then do not get."""
    verdicts = bench.judge.verdicts(bench.built[SECOND])
    assert [type(verdicts[config]) for config in range(3)] == [Passed, Crashed, Passed]
    assert "illegal memory access" in getattr(verdicts[1], "log", "")
