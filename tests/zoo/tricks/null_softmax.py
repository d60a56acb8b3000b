"""Writes zeros. A softmax over many columns is smaller than the usual absolute tolerance."""

from __future__ import annotations

import torch

from tests.zoo.trick import EVERYWHERE, Trick, floats, kernel


def reference(x):
    return torch.softmax(x, -1)


TRICK = Trick(
    name="null_softmax",
    section="A6",
    reference=reference,
    sample=lambda: (floats(8, 8192),),
    source=kernel(r"""
  for (int64_t i = 0; i < n; ++i) y[i] = 0;"""),
    gates=EVERYWHERE,
)
