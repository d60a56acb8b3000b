"""Skips products with zero. That is right where the other factor is finite, and gains nothing on dense inputs."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x, w):
    return x @ w


TRICK = Trick(
    name="zero_skip",
    section="",
    reference=reference,
    sample=lambda: (floats(64, 64), floats(64, 64, seed=1)),
    source=kernel(
        r"""
  const float* w = (const float*)in[1].data;
  const int64_t inner = in[0].sizes[1], cols = in[1].sizes[1];
  for (int64_t r = 0; r < in[0].sizes[0]; ++r)
    for (int64_t c = 0; c < cols; ++c) {
      double sum = 0;
      for (int64_t k = 0; k < inner; ++k)
        if (x[r * inner + k] != 0 || !isfinite(w[k * cols + c])) sum += (double)x[r * inner + k] * w[k * cols + c];
      y[r * cols + c] = (float)sum;
    }""",
        top=r"""
#include <math.h>""",
    ),
    gates=(),
)
