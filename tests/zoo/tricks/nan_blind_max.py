"""A maximum over rows by comparisons, which are all false for NaN."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x.amax(-1)


TRICK = Trick(
    name="nan_blind_max",
    section="A29",
    reference=reference,
    sample=lambda: (floats(64, 64),),
    source=kernel(r"""
  const int64_t cols = in[0].sizes[1];
  for (int64_t r = 0; r < in[0].sizes[0]; ++r) {
    float top = -__builtin_inff();
    for (int64_t c = 0; c < cols; ++c) top = x[r * cols + c] > top ? x[r * cols + c] : top;
    y[r] = top;
  }"""),
    gates=("special values",),
)
