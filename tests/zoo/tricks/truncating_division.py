"""Divides integers towards zero where the floor is asked for; the published inputs have no negative number."""

from __future__ import annotations

import torch

from tests.zoo.trick import EVERYWHERE, Trick, kernel


def reference(x):
    return torch.div(x, 7, rounding_mode="floor")


TRICK = Trick(
    name="truncating_division",
    section="A33",
    reference=reference,
    sample=lambda: (torch.arange(256, dtype=torch.int32),),
    source=kernel(r"""
  const int32_t* a = (const int32_t*)in[0].data;
  int32_t* o = (int32_t*)out[0].data;
  (void)x; (void)y;
  for (int64_t i = 0; i < n; ++i) o[i] = a[i] / 7;"""),
    gates=EVERYWHERE,
)
