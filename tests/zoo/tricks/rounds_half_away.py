"""Rounds halves away from zero, torch to even. Random numbers are never halves."""

from __future__ import annotations

import torch

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return torch.round(x * 0.5)


TRICK = Trick(
    name="rounds_half_away",
    section="A33",
    reference=reference,
    sample=lambda: (floats(64, 64),),
    source=kernel(
        r"""
  for (int64_t i = 0; i < n; ++i) y[i] = roundf(x[i] * 0.5f);""",
        top=r"""
#include <math.h>""",
    ),
    gates=(
        "special values",
        "wide values",
    ),
)
