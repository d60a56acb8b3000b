"""Takes a row for equal to the one before when the first values are equal, and copies its result."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x.sum(-1)


TRICK = Trick(
    name="same_head_rows",
    section="A73",
    reference=reference,
    sample=lambda: (floats(64, 64),),
    source=kernel(r"""
  const int64_t cols = in[0].sizes[1];
  for (int64_t r = 0; r < in[0].sizes[0]; ++r) {
    double sum = 0;
    if (r > 0 && x[r * cols] == x[(r - 1) * cols]) {
      y[r] = y[r - 1];
      continue;
    }
    for (int64_t c = 0; c < cols; ++c) sum += x[r * cols + c];
    y[r] = (float)sum;
  }"""),
    gates=("patterns",),
)
