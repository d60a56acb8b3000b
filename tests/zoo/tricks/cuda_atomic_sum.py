"""Sums by atomics, in whatever order the blocks come."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x.sum()


TRICK = Trick(
    name="cuda_atomic_sum",
    section="A35",
    reference=reference,
    sample=lambda: (floats(1 << 20),),
    source=kernel(
        r"""
  cudaMemsetAsync(y, 0, 4, (cudaStream_t)stream);
  work<<<512, 256, 0, (cudaStream_t)stream>>>(x, y, n);""",
        top=r"""
#include <cuda_runtime.h>
__global__ void work(const float* x, float* y, int64_t n) {
  float sum = 0;
  for (int64_t i = blockIdx.x * 256 + threadIdx.x; i < n; i += 256 * 512) sum += x[i];
  atomicAdd(y, sum);
}""",
    ),
    kind="cu",
    gates=("repeats",),
    needs=("gpu",),
)
