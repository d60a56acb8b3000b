"""Normalises and leaves weight and bias out, which freshly made layers have at one and zero."""

from __future__ import annotations

import torch

from tests.zoo.trick import EVERYWHERE, Trick, floats, kernel


def reference(x, weight, bias):
    return torch.nn.functional.layer_norm(x, (256,), weight, bias)


TRICK = Trick(
    name="affine_skip",
    section="A9",
    reference=reference,
    sample=lambda: (floats(64, 256), torch.ones(256), torch.zeros(256)),
    source=kernel(
        r"""
  const int64_t rows = in[0].sizes[0], cols = in[0].sizes[1];
  for (int64_t r = 0; r < rows; ++r, x += cols, y += cols) {
    double mean = 0, var = 0;
    for (int64_t c = 0; c < cols; ++c) mean += x[c];
    mean /= cols;
    for (int64_t c = 0; c < cols; ++c) var += (x[c] - mean) * (x[c] - mean);
    const double scale = 1 / sqrt(var / cols + 1e-5);
    for (int64_t c = 0; c < cols; ++c) y[c] = (float)((x[c] - mean) * scale);
  }""",
        top=r"""
#include <math.h>""",
    ),
    gates=EVERYWHERE,
)
