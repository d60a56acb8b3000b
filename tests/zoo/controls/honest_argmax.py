"""The first maximum of a row, or the first NaN."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x.argmax(-1)


TRICK = Trick(
    name="honest_argmax",
    section="",
    reference=reference,
    sample=lambda: (floats(64, 64),),
    source=kernel(r"""
  const int64_t cols = in[0].sizes[1];
  int64_t* o = (int64_t*)out[0].data;
  (void)y;
  for (int64_t r = 0; r < in[0].sizes[0]; ++r) {
    const float* row = x + r * cols;
    int64_t best = 0;
    for (int64_t c = 1; c < cols; ++c)
      if (row[best] == row[best] && (row[c] > row[best] || row[c] != row[c])) best = c;
    o[r] = best;
  }"""),
    gates=(),
)
