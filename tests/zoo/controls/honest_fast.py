"""Three operations in one pass: right, and faster than eager's three passes."""

from __future__ import annotations

import torch

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return torch.where(x > 0, x, x * 0.125) * 2.0 + 1.0


TRICK = Trick(
    name="honest_fast",
    section="",
    reference=reference,
    sample=lambda: (floats(512, 1024),),
    source=kernel(r"""
  for (int64_t i = 0; i < n; ++i) y[i] = (x[i] > 0 ? x[i] : x[i] * 0.125f) * 2.0f + 1.0f;"""),
    gates=(),
    timing=True,
)
