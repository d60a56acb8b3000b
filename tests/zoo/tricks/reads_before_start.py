"""A stencil that reads the element before the first and gives it the weight zero."""

from __future__ import annotations

import torch

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x - torch.nn.functional.pad(x[:-1], (1, 0))


TRICK = Trick(
    name="reads_before_start",
    section="A39",
    reference=reference,
    sample=lambda: (floats(1024),),
    source=kernel(r"""
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] - x[i - 1] * (i > 0);"""),
    gates=(
        "reads inside",
        "sanitizers",
    ),
)
