"""The lower triangle of a matrix product, by a kernel that never writes the upper one."""

from __future__ import annotations

import torch

from tests.gpu.published.form import Published, cuda


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.tril(a @ b)


KERNEL = Published(
    name="lower_triangle",
    where="Sakana AI, AI CUDA Engineer, 2025, on problem 15 of level 1 of KernelBench",
    claim="150 times as fast; withdrawn when memory that the reference had freed turned out to hold the answer",
    reference=reference,
    inputs=(((1024, 1024), torch.float32), ((1024, 1024), torch.float32)),
    source=cuda(
        r"""
constexpr int TILE = 32;
__global__ void lower(const float* a, const float* b, float* y, int64_t n) {
  __shared__ float left[TILE][TILE], right[TILE][TILE];
  if (blockIdx.x > blockIdx.y) return;
  const int64_t row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
  float sum = 0.0f;
  for (int64_t start = 0; start < n; start += TILE) {
    const int64_t across = start + threadIdx.x, down = start + threadIdx.y;
    left[threadIdx.y][threadIdx.x] = row < n && across < n ? a[row * n + across] : 0.0f;
    right[threadIdx.y][threadIdx.x] = down < n && column < n ? b[down * n + column] : 0.0f;
    __syncthreads();
    float part = 0.0f;
    for (int k = 0; k < TILE; ++k) part = fmaf(left[threadIdx.y][k], right[k][threadIdx.x], part);
    sum += part;
    __syncthreads();
  }
  if (row < n && column <= row) y[row * n + column] = sum;
}""",
        r"""
  const int64_t n = in[0].sizes[0];
  const unsigned tiles = (unsigned)((n + TILE - 1) / TILE);
  lower<<<dim3(tiles, tiles), dim3(TILE, TILE), 0, queue>>>((const float*)in[0].data, (const float*)in[1].data,
                                                            (float*)out[0].data, n);""",
    ),
    kind="cu",
    rejected_by=("writes everything",),
    why="the zeros above the diagonal are what the memory happened to hold",
)
