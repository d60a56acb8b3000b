"""Sums in an accumulator of sixteen significant bits."""

from __future__ import annotations

from tests.zoo.trick import EVERYWHERE, Trick, floats, kernel


def reference(x):
    return x.sum(-1)


TRICK = Trick(
    name="short_accumulator",
    section="A25",
    reference=reference,
    sample=lambda: (floats(16, 128),),
    source=kernel(
        r"""
  const int64_t cols = in[0].sizes[1];
  for (int64_t r = 0; r < in[0].sizes[0]; ++r) {
    float sum = 0;
    for (int64_t c = 0; c < cols; ++c) {
      sum += x[r * cols + c];
      uint32_t bits;
      memcpy(&bits, &sum, 4);
      if ((bits & 0x7f800000u) != 0x7f800000u) bits = (bits + 0x80u) & ~0xffu;
      memcpy(&sum, &bits, 4);
    }
    y[r] = sum;
  }""",
        top=r"""
#include <string.h>""",
    ),
    gates=EVERYWHERE,
)
