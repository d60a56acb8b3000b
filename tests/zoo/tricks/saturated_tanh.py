"""Takes the hyperbolic tangent for one from three on, where it is 0.995."""

from __future__ import annotations

import torch

from tests.zoo.trick import EVERYWHERE, Trick, floats, kernel


def reference(x):
    return torch.tanh(x)


TRICK = Trick(
    name="saturated_tanh",
    section="A26",
    reference=reference,
    sample=lambda: (floats(4096),),
    source=kernel(
        r"""
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] > 3 ? 1 : x[i] < -3 ? -1 : tanhf(x[i]);""",
        top=r"""
#include <math.h>""",
    ),
    gates=EVERYWHERE,
)
