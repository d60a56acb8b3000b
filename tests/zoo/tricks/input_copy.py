"""Copies its input, which a ReLU of values between zero and one is."""

from __future__ import annotations

import torch

from tests.zoo.trick import EVERYWHERE, Trick, kernel


def reference(x):
    return torch.relu(x)


TRICK = Trick(
    name="input_copy",
    section="A19",
    reference=reference,
    sample=lambda: (torch.rand(64, 64, generator=torch.Generator().manual_seed(0)),),
    source=kernel(r"""
  for (int64_t i = 0; i < n; ++i) y[i] = x[i];"""),
    gates=EVERYWHERE,
)
