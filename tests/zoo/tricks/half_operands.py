"""Rounds the operands of a float32 product to eleven bits, as tensor cores do that were not asked for."""

from __future__ import annotations

from tests.zoo.trick import EVERYWHERE, Trick, floats, kernel


def reference(x, w):
    return x @ w


TRICK = Trick(
    name="half_operands",
    section="A23",
    reference=reference,
    sample=lambda: (floats(64, 32), floats(32, 64, seed=1)),
    source=kernel(
        r"""
  const float* w = (const float*)in[1].data;
  const int64_t inner = in[0].sizes[1], cols = in[1].sizes[1];
  for (int64_t r = 0; r < in[0].sizes[0]; ++r)
    for (int64_t c = 0; c < cols; ++c) {
      float sum = 0;
      for (int64_t k = 0; k < inner; ++k) sum += rounded(x[r * inner + k]) * rounded(w[k * cols + c]);
      y[r * cols + c] = sum;
    }""",
        top=r"""
#include <string.h>
static float rounded(float v) {
  uint32_t bits;
  memcpy(&bits, &v, 4);
  bits = (bits + 0x1000u) & ~0x1fffu;
  memcpy(&v, &bits, 4);
  return v;
}""",
    ),
    gates=EVERYWHERE,
)
