"""Takes a row for empty when its first value is zero, and saves the work. Random rows never begin with zero."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x.sum(-1)


TRICK = Trick(
    name="skips_zero_rows",
    section="A73",
    reference=reference,
    sample=lambda: (floats(64, 64),),
    source=kernel(r"""
  const int64_t cols = in[0].sizes[1];
  for (int64_t r = 0; r < in[0].sizes[0]; ++r) {
    double sum = 0;
    for (int64_t c = 0; c < cols && x[r * cols] != 0; ++c) sum += x[r * cols + c];
    y[r] = (float)sum;
  }"""),
    gates=(
        "special values",
        "patterns",
    ),
)
