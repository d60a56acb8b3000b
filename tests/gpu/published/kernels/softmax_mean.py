"""The mean of a softmax, which is one over the length of the row, whatever is in it."""

from __future__ import annotations

import torch

from tests.gpu.published.form import Published, cuda


def reference(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1).mean(-1)


KERNEL = Published(
    name="softmax_mean",
    where="entries to level 2 of KernelBench, described by METR, Measuring automated kernel engineering, 2025",
    claim="a chain of operations that ends in a constant, without the chain",
    reference=reference,
    inputs=(((4096, 4096), torch.float32),),
    source=cuda(
        r"""
__global__ void constant(float* y, int64_t rows, int64_t columns) {
  const int64_t row = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (row < rows) y[row] = 1.0f / columns;
}""",
        r"""
  const int64_t rows = in[0].sizes[0];
  constant<<<(unsigned)((rows + 255) / 256), 256, 0, queue>>>((float*)out[0].data, rows, in[0].sizes[1]);""",
    ),
    kind="cu",
    rejected_by=("special values",),
    why="true of finite rows only: one NaN or infinity makes eager's mean NaN",
    any_size=True,
)
