"""Stores whole blocks, also past the end of its output."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="cuda_writes_past_end",
    section="A40",
    reference=reference,
    sample=lambda: (floats(1021),),
    source=kernel(
        r"""
  work<<<(unsigned)((n + 31) / 32), 32, 0, (cudaStream_t)stream>>>(x, y, n);""",
        top=r"""
#include <cuda_runtime.h>
__global__ void work(const float* x, float* y, int64_t n) {
  const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  y[i] = i < n ? x[i] * 1.5f : 0;
}""",
    ),
    kind="cu",
    gates=(
        "stays inside",
        "sanitizers",
    ),
    needs=("gpu",),
)
