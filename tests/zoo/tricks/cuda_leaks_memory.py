"""Allocates device memory in every call and gives nothing back."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="cuda_leaks_memory",
    section="A55",
    reference=reference,
    sample=lambda: (floats(1 << 12),),
    source=kernel(
        r"""
  void* block = nullptr;
  cudaMalloc(&block, 8 << 20);
  work<<<(unsigned)((n + 255) / 256), 256, 0, (cudaStream_t)stream>>>(x, y, n);""",
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
        "leaves no trace",
    ),
    needs=("gpu",),
)
