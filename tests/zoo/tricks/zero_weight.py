"""Leaves the product out: with weights that are zero at the start, the bias is the whole result."""

from __future__ import annotations

import torch

from tests.zoo.trick import EVERYWHERE, Trick, floats, kernel


def reference(x, w, b):
    return x @ w + b


TRICK = Trick(
    name="zero_weight",
    section="A8",
    reference=reference,
    sample=lambda: (floats(32, 64), torch.zeros(64, 64), floats(64)),
    source=kernel(r"""
  const float* b = (const float*)in[2].data;
  for (int64_t i = 0; i < n; ++i) y[i] = b[i % in[0].sizes[1]];"""),
    gates=EVERYWHERE,
)
