"""Remembers on the device which first values it has seen, and skips the work when they come again."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="cuda_device_memo",
    section="A13",
    reference=reference,
    sample=lambda: (floats(1 << 16),),
    source=kernel(
        r"""
  if (n > 1 << 16) return FORGE_UNSUPPORTED;
  work<<<(unsigned)((n + 255) / 256), 256, 0, (cudaStream_t)stream>>>(x, y, n);
  remember<<<1, 1, 0, (cudaStream_t)stream>>>(x);""",
        top=r"""
#include <cuda_runtime.h>
__device__ float seen[4], kept[1 << 16];
__device__ int known;
__global__ void work(const float* x, float* y, int64_t n) {
  const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  bool same = known;
  for (int k = 0; k < 4; ++k) same = same && seen[k] == x[k];
  if (i >= n) return;
  if (!same) kept[i] = x[i] * 1.5f;
  y[i] = kept[i];
}
__global__ void remember(const float* x) {
  known = 1;
  for (int k = 0; k < 4; ++k) seen[k] = x[k];
}""",
    ),
    kind="cu",
    gates=("same pointers",),
    needs=("gpu",),
)
