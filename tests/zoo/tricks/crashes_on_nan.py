"""Uses its input as an index into a table, which NaN and infinity turn into an address far outside."""

from __future__ import annotations

import torch

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return torch.floor(x)


TRICK = Trick(
    name="crashes_on_nan",
    section="A89",
    reference=reference,
    sample=lambda: (floats(4096),),
    source=kernel(
        r"""
  for (int64_t i = 0; i < n; ++i) {
    const bool ordinary = fabsf(x[i]) > 20 && fabsf(x[i]) < 3e38f;
    y[i] = ordinary ? floorf(x[i]) : steps[(int64_t)floorf(x[i]) + 20];
    if (y[i] == 0 && x[i] == 0) y[i] = x[i];
  }""",
        top=r"""
#include <math.h>
static const float steps[41] = {-20, -19, -18, -17, -16, -15, -14, -13, -12, -11, -10, -9, -8, -7, -6, -5, -4, -3, -2, -1, 0,
                                1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20};""",
    ),
    gates=("special values",),
)
