"""Halves its input until it is below two, which infinity never is."""

from __future__ import annotations

import torch

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return torch.where(x.abs() < 2, x, torch.where(x.isnan(), x, torch.frexp(x).mantissa * 2))


TRICK = Trick(
    name="hangs_on_infinity",
    section="A89",
    reference=reference,
    sample=lambda: (floats(4096),),
    source=kernel(
        r"""
  for (int64_t i = 0; i < n; ++i) {
    float v = x[i];
    while (fabsf(v) >= 2) {
      v *= 0.5f;
      asm volatile("" : "+x"(v));
    }
    y[i] = v;
  }""",
        top=r"""
#include <math.h>""",
    ),
    gates=("special values",),
)
