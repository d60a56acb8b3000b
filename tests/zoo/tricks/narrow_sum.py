"""Sums 64-bit integers in 32 bits."""

from __future__ import annotations

import torch

from tests.zoo.trick import Trick, kernel


def reference(x):
    return (x * x).sum(-1)


TRICK = Trick(
    name="narrow_sum",
    section="A33",
    reference=reference,
    sample=lambda: (torch.arange(512).reshape(8, 64),),
    source=kernel(r"""
  const int64_t* a = (const int64_t*)in[0].data;
  int64_t* o = (int64_t*)out[0].data;
  (void)x; (void)y;
  for (int64_t r = 0; r < in[0].sizes[0]; ++r) {
    uint32_t sum = 0;
    for (int64_t c = 0; c < in[0].sizes[1]; ++c) sum += (uint32_t)(a[r * in[0].sizes[1] + c] * a[r * in[0].sizes[1] + c]);
    o[r] = (int32_t)sum;
  }"""),
    gates=("wide values",),
)
