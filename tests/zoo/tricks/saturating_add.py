"""Adds bytes with saturation, as vector units offer it; torch wraps around."""

from __future__ import annotations

import torch

from tests.zoo.trick import EVERYWHERE, Trick, kernel


def reference(x, z):
    return x + z


TRICK = Trick(
    name="saturating_add",
    section="A33",
    reference=reference,
    sample=lambda: (torch.arange(64, dtype=torch.int8), torch.arange(64, dtype=torch.int8)),
    source=kernel(r"""
  const int8_t* a = (const int8_t*)in[0].data;
  const int8_t* b = (const int8_t*)in[1].data;
  int8_t* o = (int8_t*)out[0].data;
  (void)x; (void)y;
  for (int64_t i = 0; i < n; ++i) {
    const int sum = a[i] + b[i];
    o[i] = sum > 127 ? 127 : sum < -128 ? -128 : sum;
  }"""),
    gates=EVERYWHERE,
)
