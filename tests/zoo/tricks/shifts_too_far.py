"""Shifts by the width of the type, which this processor forgives and the language does not define."""

from __future__ import annotations

import torch

from tests.zoo.trick import Trick, kernel


def reference(x):
    return x + 1


TRICK = Trick(
    name="shifts_too_far",
    section="A36",
    reference=reference,
    sample=lambda: (torch.arange(64, dtype=torch.int32),),
    source=kernel(r"""
  const int32_t* a = (const int32_t*)in[0].data;
  int32_t* o = (int32_t*)out[0].data;
  (void)x; (void)y;
  volatile int width = 32;
  volatile int32_t sink;
  for (int64_t i = 0; i < n; ++i) {
    sink = a[i] << width;
    o[i] = (int32_t)((uint32_t)a[i] + 1);
  }
  (void)sink;"""),
    gates=("sanitizers",),
)
