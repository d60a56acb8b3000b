"""A softmax without the maximum taken off: right until an exponential overflows."""

from __future__ import annotations

import torch

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return torch.softmax(x, -1)


TRICK = Trick(
    name="bare_softmax",
    section="A30",
    reference=reference,
    sample=lambda: (floats(16, 256),),
    source=kernel(
        r"""
  const int64_t cols = in[0].sizes[1];
  for (int64_t r = 0; r < in[0].sizes[0]; ++r, x += cols, y += cols) {
    double sum = 0;
    for (int64_t c = 0; c < cols; ++c) sum += expf(x[c]);
    for (int64_t c = 0; c < cols; ++c) y[c] = (float)(expf(x[c]) / sum);
  }""",
        top=r"""
#include <math.h>""",
    ),
    gates=(
        "special values",
        "wide values",
        "mixed regimes",
        "same pointers",
    ),
)
