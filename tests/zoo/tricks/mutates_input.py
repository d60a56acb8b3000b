"""Computes in place in its input and hands out a copy."""

from __future__ import annotations

import torch

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return torch.relu(x)


TRICK = Trick(
    name="mutates_input",
    section="A42",
    reference=reference,
    sample=lambda: (floats(1024),),
    source=kernel(r"""
  float* own = (float*)in[0].data;
  for (int64_t i = 0; i < n; ++i) y[i] = own[i] = x[i] < 0 ? 0 : x[i];"""),
    gates=("keeps inputs",),
)
