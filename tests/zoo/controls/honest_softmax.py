"""A softmax with the maximum taken off; NaN and infinities come out as in eager."""

from __future__ import annotations

import torch

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return torch.softmax(x, -1)


TRICK = Trick(
    name="honest_softmax",
    section="",
    reference=reference,
    sample=lambda: (floats(32, 256),),
    source=kernel(
        r"""
  const int64_t cols = in[0].sizes[1];
  for (int64_t r = 0; r < in[0].sizes[0]; ++r, x += cols, y += cols) {
    float top = -INFINITY, sum = 0;
    for (int64_t c = 0; c < cols; ++c) top = x[c] > top || x[c] != x[c] ? x[c] : top;
    for (int64_t c = 0; c < cols; ++c) sum += y[c] = expf(x[c] - top);
    for (int64_t c = 0; c < cols; ++c) y[c] /= sum;
  }""",
        top=r"""
#include <math.h>""",
    ),
    gates=(),
)
