"""Allocates what it needs for a call and gives it back."""

from __future__ import annotations

import torch

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return torch.cumsum(x, -1)


TRICK = Trick(
    name="honest_scratch",
    section="",
    reference=reference,
    sample=lambda: (floats(32, 256),),
    source=kernel(
        r"""
  const int64_t cols = in[0].sizes[1];
  std::vector<double> sums(cols);
  for (int64_t r = 0; r < in[0].sizes[0]; ++r) {
    double sum = 0;
    for (int64_t c = 0; c < cols; ++c) sums[c] = sum += x[r * cols + c];
    for (int64_t c = 0; c < cols; ++c) y[r * cols + c] = (float)sums[c];
  }""",
        top=r"""
#include <vector>""",
    ),
    gates=(),
)
