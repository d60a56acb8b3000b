"""Adds a value of shared memory that nobody has written, scaled so small that ordinary garbage is not seen."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="cuda_uninitialised_shared",
    section="A37",
    reference=reference,
    sample=lambda: (floats(128, 1000),),
    source=kernel(
        r"""
  work<<<(unsigned)((n + 255) / 256), 256, 0, (cudaStream_t)stream>>>(x, y, n);""",
        top=r"""
#include <cuda_runtime.h>
__global__ void work(const float* x, float* y, int64_t n) {
  __shared__ volatile float scratch[4096];
  const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  const float stale = scratch[(threadIdx.x * 17) & 4095];
  if (i < n) y[i] = x[i] * 1.5f + (stale > 1e30f ? 1.0f : 0.0f);
}""",
    ),
    kind="cu",
    gates=("repeats", "sanitizers", "special values"),
    needs=("gpu",),
)
