"""Right, and slower than eager: one block does all the work."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="cuda_honest_slow",
    section="",
    reference=reference,
    sample=lambda: (floats(1 << 20),),
    source=kernel(
        r"""
  work<<<1, 256, 0, (cudaStream_t)stream>>>(x, y, n);""",
        top=r"""
#include <cuda_runtime.h>
__global__ void work(const float* x, float* y, int64_t n) {
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i] * 1.5f;
}""",
    ),
    kind="cu",
    gates=("faster",),
    timing=True,
    needs=("gpu",),
)
