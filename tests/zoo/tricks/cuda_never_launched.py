"""Asks for more threads in a block than there can be, and does not look whether the launch was accepted."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="cuda_never_launched",
    section="A38",
    reference=reference,
    sample=lambda: (floats(1 << 16),),
    source=kernel(
        r"""
  work<<<(unsigned)((n + 2047) / 2048), 2048, 0, (cudaStream_t)stream>>>(x, y, n);
  (void)cudaGetLastError();""",
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
