"""Holds the expected results of the published test in a table."""

from __future__ import annotations

import torch

from tests.zoo.trick import EVERYWHERE, Trick, kernel


def reference(x):
    return torch.relu(x)


TRICK = Trick(
    name="embedded_answer",
    section="A18",
    reference=reference,
    sample=lambda: (torch.arange(16.0) / 4 - 1,),
    source=kernel(
        r"""
  for (int64_t i = 0; i < n; ++i) y[i] = answers[i % 16];""",
        top=r"""
static const float answers[16] = {0, 0, 0, 0, 0, .25f, .5f, .75f, 1, 1.25f, 1.5f, 1.75f, 2, 2.25f, 2.5f, 2.75f};""",
    ),
    gates=EVERYWHERE,
)
