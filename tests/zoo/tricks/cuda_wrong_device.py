"""Launches on the first device whatever device its tensors are on."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="cuda_wrong_device",
    section="A50",
    reference=reference,
    sample=lambda: (floats(1 << 16),),
    source=kernel(
        r"""
  int before = 0;
  cudaGetDevice(&before);
  cudaSetDevice(0);
  work<<<(unsigned)((n + 255) / 256), 256>>>(x, y, n);
  cudaDeviceSynchronize();
  cudaSetDevice(before);
  (void)cudaGetLastError();""",
        top=r"""
#include <cuda_runtime.h>
__global__ void work(const float* x, float* y, int64_t n) {
  const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * 1.5f;
}""",
    ),
    kind="cu",
    gates=(
        "source",
        "is right",
    ),
    needs=("gpu", "two gpus"),
)
