"""Writes rows first whatever strides its output has."""

from __future__ import annotations

import torch

from tests.zoo.trick import EVERYWHERE, Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="layout_blind",
    section="A44",
    reference=reference,
    sample=lambda: (floats(2, 3, 8, 8).to(memory_format=torch.channels_last),),
    source=kernel(r"""
  const int64_t *size = in[0].sizes, *step = in[0].strides;
  for (int64_t b = 0, i = 0; b < size[0]; ++b)
    for (int64_t c = 0; c < size[1]; ++c)
      for (int64_t h = 0; h < size[2]; ++h)
        for (int64_t w = 0; w < size[3]; ++w) y[i++] = x[b * step[0] + c * step[1] + h * step[2] + w * step[3]] * 1.5f;"""),
    gates=EVERYWHERE,
)
