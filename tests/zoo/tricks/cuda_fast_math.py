"""Takes the device's approximate sine."""

from __future__ import annotations

import torch

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return torch.sin(x * 8.0)


TRICK = Trick(
    name="cuda_fast_math",
    section="A26",
    reference=reference,
    sample=lambda: (floats(1 << 12),),
    source=kernel(
        r"""
  work<<<(unsigned)((n + 255) / 256), 256, 0, (cudaStream_t)stream>>>(x, y, n);""",
        top=r"""
#include <cuda_runtime.h>
__global__ void work(const float* x, float* y, int64_t n) {
  const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i < n) y[i] = __sinf(x[i] * 8);
}""",
    ),
    kind="cu",
    gates=("is right", "special values"),
    needs=("gpu",),
)
