"""Sums forwards and backwards by turns, as atomics do by chance: each time within the tolerance, never twice the same."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x.sum(-1)


TRICK = Trick(
    name="order_by_turns",
    section="A35",
    reference=reference,
    sample=lambda: (floats(16, 1024),),
    source=kernel(
        r"""
  const int64_t cols = in[0].sizes[1];
  const bool backwards = calls++ & 1;
  for (int64_t r = 0; r < in[0].sizes[0]; ++r) {
    float lane[16] = {0};
    for (int64_t c = 0; c < cols; ++c) lane[c & 15] += x[r * cols + (backwards ? cols - 1 - c : c)];
    float sum = 0;
    for (int k = 0; k < 16; ++k) sum += lane[k];
    y[r] = sum;
  }""",
        top=r"""
static int calls;""",
    ),
    gates=("repeats",),
)
