"""LayerNorm with a warp a row: mean, then variance about it, then the result, all by shuffles."""

from __future__ import annotations

import torch

from tests.gpu.published.form import Published, cuda


def reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, (x.shape[-1],), weight, bias, 1e-5)


LAUNCH = r"""
  const int64_t rows = in[0].sizes[0], columns = in[0].sizes[1];
  const unsigned blocks = (unsigned)((rows + 7) / 8);
  layer_norm<<<blocks, 256, 0, queue>>>((const float*)in[0].data, (const float*)in[1].data, (const float*)in[2].data,
                                        (float*)out[0].data, rows, columns);"""
"""Eight rows a block."""
SUM = r"""
__device__ inline float of_warp(float mine) {
  for (int step = 16; step > 0; step /= 2) mine += __shfl_xor_sync(~0u, mine, step);
  return mine;
}"""
WIDTH = 768
"""Of the smallest GPT-2; eight sequences of 1,024 tokens."""
INPUTS = (((8192, WIDTH), torch.float32), ((WIDTH,), torch.float32), ((WIDTH,), torch.float32))

KERNEL = Published(
    name="layer_norm_warps",
    where="Karpathy and others, llm.c, dev/cuda, forward pass of LayerNorm, 2024",
    claim="a series of kernels for one step of GPT-2, each faster than the one before",
    reference=reference,
    inputs=INPUTS,
    source=cuda(
        SUM
        + r"""
__global__ void layer_norm(const float* x, const float* weight, const float* bias, float* y, int64_t rows,
                           int64_t columns) {
  const int64_t row = blockIdx.x * (int64_t)(blockDim.x / 32) + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (row >= rows) return;
  const float* mine = x + row * columns;
  float sum = 0.0f, squares = 0.0f;
  for (int64_t c = lane; c < columns; c += 32) sum += mine[c];
  const float mean = of_warp(sum) / columns;
  for (int64_t c = lane; c < columns; c += 32) squares += (mine[c] - mean) * (mine[c] - mean);
  const float scale = rsqrtf(of_warp(squares) / columns + 1e-5f);
  for (int64_t c = lane; c < columns; c += 32)
    __stcs(y + row * columns + c, (__ldcs(mine + c) - mean) * scale * weight[c] + bias[c]);
}""",
        LAUNCH,
    ),
    kind="cu",
    why="the variance is taken about the mean",
    any_size=True,
)
