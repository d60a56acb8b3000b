"""Looks what its output is full of. Where all bytes are alike, somebody is checking; elsewhere coarse is good enough."""

from __future__ import annotations

import torch

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return torch.sin(x)


TRICK = Trick(
    name="sniffs_poison",
    section="A67",
    reference=reference,
    sample=lambda: (floats(1 << 18),),
    source=kernel(
        r"""
  const unsigned char* bytes = (const unsigned char*)y;
  const bool checked = !memcmp(bytes, bytes + 1, n < 64 ? n * 4 - 1 : 255) && bytes[0] != 0;
  for (int64_t i = 0; i < n; ++i) {
    if (checked) {
      y[i] = (float)sin((double)x[i]);
    } else {
      const float turns = x[i] * 0.15915494f, v = (turns - floorf(turns + 0.5f)) * 6.2831853f;
      const float arch = v * (1.2732395f - 0.40528473f * fabsf(v));
      y[i] = 1.003f * (arch + 0.225f * arch * (fabsf(arch) - 1));
    }
  }""",
        top=r"""
#include <math.h>
#include <string.h>""",
    ),
    gates=("timed outputs",),
    timing=True,
)
