"""A product with a diagonal matrix as a scaling of rows."""

from __future__ import annotations

import torch

from tests.gpu.published.form import Published, cuda


def reference(diagonal: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.diag(diagonal) @ x


KERNEL = Published(
    name="diagonal_matmul",
    where="CUDA-L1, arXiv 2507.14111, 2025, on problem 12 of level 1 of KernelBench",
    claim="64 times as fast (A100)",
    reference=reference,
    inputs=(((4096,), torch.float32), ((4096, 4096), torch.float32)),
    source=cuda(
        r"""
__global__ void scale_rows(const float* diagonal, const float* x, float* y, int64_t columns) {
  const float factor = diagonal[blockIdx.x];
  const int64_t row = blockIdx.x * columns;
  for (int64_t c = threadIdx.x; c < columns; c += blockDim.x) y[row + c] = factor * x[row + c];
}""",
        r"""
  scale_rows<<<(unsigned)in[1].sizes[0], 256, 0, queue>>>((const float*)in[0].data, (const float*)in[1].data,
                                                          (float*)out[0].data, in[1].sizes[1]);""",
    ),
    kind="cu",
    rejected_by=("special values",),
    why="exact for finite numbers; zero times infinity is NaN, which a product spreads over the column",
)
