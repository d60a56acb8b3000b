"""Launches half of the blocks."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="cuda_half_of_it",
    section="A21",
    reference=reference,
    sample=lambda: (floats(7, 1031),),
    source=kernel(
        r"""
  work<<<(unsigned)((n + 511) / 512), 256, 0, (cudaStream_t)stream>>>(x, y, n);""",
        top=r"""
#include <cuda_runtime.h>
__global__ void work(const float* x, float* y, int64_t n) {
  const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * 1.5f;
}""",
    ),
    kind="cu",
    gates=("writes everything",),
    needs=("gpu",),
)
