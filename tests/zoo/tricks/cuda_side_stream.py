"""Launches on a stream of its own and returns; an event on the caller's stream fires at once."""

from __future__ import annotations

import torch

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return torch.sin(torch.cos(x)) * 1.5


TRICK = Trick(
    name="cuda_side_stream",
    section="A58",
    reference=reference,
    sample=lambda: (floats(2048, 2048),),
    source=kernel(
        r"""
  if (!own) cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking);
  work<<<512, 256, 0, own>>>(x, y, n);""",
        top=r"""
#include <cuda_runtime.h>
__global__ void work(const float* x, float* y, int64_t n) {
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (int64_t)blockDim.x)
    y[i] = sinf(cosf(x[i])) * 1.5f;
}
static cudaStream_t own;""",
    ),
    kind="cu",
    gates=("source", "writes everything", "clocks agree", "same pointers"),
    timing=True,
    needs=("gpu",),
)
