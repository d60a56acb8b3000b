"""Keeps each result on the device by the address of its input."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="cuda_pointer_memo",
    section="A11",
    reference=reference,
    sample=lambda: (floats(1 << 16),),
    source=kernel(
        r"""
  float*& kept = results[x];
  if (!kept) {
    cudaMalloc(&kept, n * 4);
    work<<<(unsigned)((n + 255) / 256), 256, 0, (cudaStream_t)stream>>>(x, kept, n);
  }
  cudaMemcpyAsync(y, kept, n * 4, cudaMemcpyDeviceToDevice, (cudaStream_t)stream);""",
        top=r"""
#include <cuda_runtime.h>
#include <map>
__global__ void work(const float* x, float* y, int64_t n) {
  const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * 1.5f;
}
static std::map<const void*, float*> results;""",
    ),
    kind="cu",
    gates=(
        "source",
        "same pointers",
    ),
    needs=("gpu",),
)
