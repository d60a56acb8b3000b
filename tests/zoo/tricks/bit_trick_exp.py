"""Makes an exponential by writing the exponent's bits, three percent off; inside a sigmoid that is within the tolerance."""

from __future__ import annotations

import torch

from tests.zoo.trick import EVERYWHERE, Trick, floats, kernel


def reference(x):
    return torch.sigmoid(x)


TRICK = Trick(
    name="bit_trick_exp",
    section="A26",
    reference=reference,
    sample=lambda: (floats(4096),),
    source=kernel(
        r"""
  for (int64_t i = 0; i < n; ++i) {
    const float v = x[i] < -80 ? 80 : x[i] > 80 ? -80 : -x[i];
    const int32_t bits = (int32_t)(12102203.0f * v) + 1064866805;
    float e;
    memcpy(&e, &bits, 4);
    y[i] = x[i] != x[i] ? x[i] : 1 / (1 + e);
  }""",
        top=r"""
#include <string.h>""",
    ),
    gates=EVERYWHERE,
)
