"""A ReLU by a maximum that prefers whatever is not NaN."""

from __future__ import annotations

import torch

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return torch.relu(x)


TRICK = Trick(
    name="cuda_nan_eater",
    section="A29",
    reference=reference,
    sample=lambda: (floats(64, 64),),
    source=kernel(
        r"""
  work<<<(unsigned)((n + 255) / 256), 256, 0, (cudaStream_t)stream>>>(x, y, n);""",
        top=r"""
#include <cuda_runtime.h>
__global__ void work(const float* x, float* y, int64_t n) {
  const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i < n) y[i] = fmaxf(x[i], 0);
}""",
    ),
    kind="cu",
    gates=("special values",),
    needs=("gpu",),
)
