"""Softmax over rows with one pass for maximum and sum, instead of two."""

from __future__ import annotations

import torch

from tests.gpu.published.form import Published, cuda


def reference(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


KERNEL = Published(
    name="online_softmax",
    where="Milakov and Gimelshein, Online normalizer calculation for softmax, arXiv 1805.02867, 2018",
    claim="up to 1.3 times as fast as the softmax with three passes (V100)",
    reference=reference,
    inputs=(((4000, 4096), torch.float32),),
    source=cuda(
        r"""
struct Running {
  float largest, sum;
};
// From the lowest finite number, so that a row that begins with minus infinity does not subtract two infinities.
__device__ inline Running nothing() { return {-FLT_MAX, 0.0f}; }
__device__ inline Running together(Running a, Running b) {
  const float largest = fmaxf(a.largest, b.largest);
  return {largest, a.sum * expf(a.largest - largest) + b.sum * expf(b.largest - largest)};
}
__device__ inline Running of_warp(Running mine) {
  for (int step = 16; step > 0; step /= 2) {
    const Running other = {__shfl_xor_sync(~0u, mine.largest, step), __shfl_xor_sync(~0u, mine.sum, step)};
    mine = together(mine, other);
  }
  return mine;
}
__global__ void softmax(const float* x, float* y, int64_t columns) {
  __shared__ Running warps[32];
  const float* row = x + blockIdx.x * columns;
  Running mine = nothing();
  for (int64_t c = threadIdx.x; c < columns; c += blockDim.x) mine = together(mine, {row[c], 1.0f});
  mine = of_warp(mine);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = mine;
  __syncthreads();
  const Running all = of_warp(threadIdx.x % 32 < blockDim.x / 32 ? warps[threadIdx.x % 32] : nothing());
  for (int64_t c = threadIdx.x; c < columns; c += blockDim.x)
    y[blockIdx.x * columns + c] = expf(row[c] - all.largest) / all.sum;
}""",
        r"""
  const int64_t rows = in[0].sizes[0], columns = in[0].sizes[1];
  softmax<<<(unsigned)rows, 256, 0, queue>>>((const float*)in[0].data, (float*)out[0].data, columns);""",
    ),
    kind="cu",
    why="algebraically the same, and NaN and infinities come through the sum",
    any_size=True,
)
