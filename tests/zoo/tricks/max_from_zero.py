"""A maximum that starts at zero: right for every row that has a positive value."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x.amax(-1)


TRICK = Trick(
    name="max_from_zero",
    section="A30",
    reference=reference,
    sample=lambda: (floats(64, 256),),
    source=kernel(r"""
  const int64_t cols = in[0].sizes[1];
  for (int64_t r = 0; r < in[0].sizes[0]; ++r) {
    float top = 0;
    for (int64_t c = 0; c < cols; ++c) {
      const float v = x[r * cols + c];
      top = v > top || v != v ? v : top;
    }
    y[r] = top;
  }"""),
    gates=("patterns",),
)
