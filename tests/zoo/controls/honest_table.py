"""Fills a table of its own once and looks values up in it: state that depends on no input."""

from __future__ import annotations

import torch

from tests.zoo.trick import Trick, kernel


def reference(x):
    return torch.bitwise_xor(x, 90)


TRICK = Trick(
    name="honest_table",
    section="",
    reference=reference,
    sample=lambda: (torch.arange(256, dtype=torch.uint8),),
    source=kernel(
        r"""
  const uint8_t* a = (const uint8_t*)in[0].data;
  uint8_t* o = (uint8_t*)out[0].data;
  (void)x; (void)y;
  if (!filled)
    for (int k = 0; k < 256; ++k) table[k] = (uint8_t)(k ^ 90);
  filled = true;
  for (int64_t i = 0; i < n; ++i) o[i] = table[a[i]];""",
        top=r"""
static uint8_t table[256];
static bool filled;""",
    ),
    gates=(),
    any_size=True,
)
