"""A sum that leaves NaN out."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x.sum(-1)


TRICK = Trick(
    name="nan_skipping_sum",
    section="A29",
    reference=reference,
    sample=lambda: (floats(64, 64),),
    source=kernel(r"""
  const int64_t cols = in[0].sizes[1];
  for (int64_t r = 0; r < in[0].sizes[0]; ++r) {
    double sum = 0;
    for (int64_t c = 0; c < cols; ++c) sum += x[r * cols + c] == x[r * cols + c] ? x[r * cols + c] : 0;
    y[r] = (float)sum;
  }"""),
    gates=("special values",),
)
