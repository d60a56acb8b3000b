"""Reads whole vectors and multiplies what lies past the end by zero."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x.sum()


TRICK = Trick(
    name="cuda_reads_past_end",
    section="A39",
    reference=reference,
    sample=lambda: (floats(1021),),
    source=kernel(
        r"""
  work<<<1, 32, 0, (cudaStream_t)stream>>>(x, y, n);""",
        top=r"""
#include <cuda_runtime.h>
__global__ void work(const float* x, float* y, int64_t n) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < (n + 31) / 32 * 32; i += 32) sum += (double)x[i] * (i < n);
  for (int step = 16; step; step /= 2) sum += __shfl_down_sync(~0u, sum, step);
  if (threadIdx.x == 0) *y = (float)sum;
}""",
    ),
    kind="cu",
    gates=(
        "reads inside",
        "sanitizers",
    ),
    needs=("gpu",),
)
