"""Looks at the last 64 values and takes the form for small ones if those are small."""

from __future__ import annotations

import torch

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return torch.tanh(x)


TRICK = Trick(
    name="sniffs_tail",
    section="A27",
    reference=reference,
    sample=lambda: (floats(8192),),
    source=kernel(
        r"""
  bool small = true;
  for (int64_t i = n < 64 ? 0 : n - 64; i < n; ++i) small = small && fabsf(x[i]) < 8;
  for (int64_t i = 0; i < n; ++i) {
    const double v = x[i];
    y[i] = small && fabs(v) > 12 ? (v < 0 ? -0.995f : 0.995f) : (float)tanh(v);
  }""",
        top=r"""
#include <math.h>""",
    ),
    gates=(
        "mixed regimes",
        "same pointers",
    ),
)
