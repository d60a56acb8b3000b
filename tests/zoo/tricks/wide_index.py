"""Computes offsets in 32 bits, which turn negative in tensors of more than 2 GiB."""

from __future__ import annotations

import torch

from tests.zoo.trick import Trick, kernel


def reference(x):
    return x + 1


TRICK = Trick(
    name="wide_index",
    section="A34",
    reference=reference,
    sample=lambda: (torch.ones((1 << 31) + 1, dtype=torch.uint8).as_strided((2,), (1 << 31,)),),
    source=kernel(r"""
  const uint8_t* a = (const uint8_t*)in[0].data;
  uint8_t* o = (uint8_t*)out[0].data;
  (void)x; (void)y;
  for (int i = 0; i < (int)n; ++i) o[i] = a[(int32_t)(i * (uint32_t)in[0].strides[0])] + 1;"""),
    gates=("is right",),
    needs=("memory",),
)
