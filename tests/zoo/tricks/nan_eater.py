"""A ReLU by a maximum that prefers whatever is not NaN."""

from __future__ import annotations

import torch

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return torch.relu(x)


TRICK = Trick(
    name="nan_eater",
    section="A29",
    reference=reference,
    sample=lambda: (floats(64, 64),),
    source=kernel(
        r"""
  for (int64_t i = 0; i < n; ++i) y[i] = fmaxf(x[i], 0);""",
        top=r"""
#include <math.h>""",
    ),
    gates=("special values",),
)
