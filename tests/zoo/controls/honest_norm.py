"""A layer norm in two passes, with weight and bias."""

from __future__ import annotations

import torch

from tests.zoo.trick import Trick, floats, kernel


def reference(x, weight, bias):
    return torch.nn.functional.layer_norm(x, (256,), weight, bias)


TRICK = Trick(
    name="honest_norm",
    section="",
    reference=reference,
    sample=lambda: (floats(64, 256), torch.ones(256), torch.zeros(256)),
    source=kernel(
        r"""
  const float *weight = (const float*)in[1].data, *bias = (const float*)in[2].data;
  const int64_t rows = in[0].sizes[0], cols = in[0].sizes[1];
  for (int64_t r = 0; r < rows; ++r, x += cols, y += cols) {
    float mean = 0, var = 0;
    for (int64_t c = 0; c < cols; ++c) mean += x[c];
    mean /= cols;
    for (int64_t c = 0; c < cols; ++c) var += (x[c] - mean) * (x[c] - mean);
    const float scale = 1 / sqrtf(var / cols + 1e-5f);
    for (int64_t c = 0; c < cols; ++c) y[c] = (x[c] - mean) * scale * weight[c] + bias[c];
  }""",
        top=r"""
#include <math.h>""",
    ),
    gates=(),
)
