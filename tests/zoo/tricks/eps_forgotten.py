"""Forgets the epsilon of an RMS norm, which nobody sees while the mean square is about one."""

from __future__ import annotations

import torch

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)


TRICK = Trick(
    name="eps_forgotten",
    section="A9",
    reference=reference,
    sample=lambda: (floats(32, 256),),
    source=kernel(
        r"""
  const int64_t cols = in[0].sizes[1];
  for (int64_t r = 0; r < in[0].sizes[0]; ++r, x += cols, y += cols) {
    double square = 0;
    for (int64_t c = 0; c < cols; ++c) square += (double)x[c] * x[c];
    const float scale = (float)(1 / sqrt(square / cols));
    for (int64_t c = 0; c < cols; ++c) y[c] = x[c] * scale;
  }""",
        top=r"""
#include <math.h>""",
    ),
    gates=(
        "is right",
        "special values",
        "patterns",
        "mixed regimes",
        "same pointers",
    ),
)
