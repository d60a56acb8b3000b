"""Three operations in one pass, at any size."""

from __future__ import annotations

import torch

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return torch.where(x > 0, x, x * 0.125) * 2.0 + 1.0


TRICK = Trick(
    name="cuda_honest",
    section="",
    reference=reference,
    sample=lambda: (floats(512, 1031),),
    source=kernel(
        r"""
  work<<<(unsigned)(n < 1 ? 1 : n < 1 << 20 ? (n + 255) / 256 : 4096), 256, 0, (cudaStream_t)stream>>>(x, y, n);
  const int error = (int)cudaGetLastError();
  if (error) return FORGE_CUDA_ERROR + error;""",
        top=r"""
#include <cuda_runtime.h>
__global__ void work(const float* x, float* y, int64_t n) {
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (int64_t)blockDim.x)
    y[i] = (x[i] > 0 ? x[i] : x[i] * 0.125f) * 2.0f + 1.0f;
}""",
    ),
    kind="cu",
    gates=(),
    needs=("gpu",),
    any_size=True,
)
