"""A row sum in sixteen lanes of float32."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x.sum(-1)


TRICK = Trick(
    name="honest_sum",
    section="",
    reference=reference,
    sample=lambda: (floats(32, 1024),),
    source=kernel(r"""
  const int64_t cols = in[0].sizes[1];
  for (int64_t r = 0; r < in[0].sizes[0]; ++r) {
    float lane[16] = {0}, sum = 0;
    for (int64_t c = 0; c < cols; ++c) lane[c & 15] += x[r * cols + c];
    for (int k = 0; k < 16; ++k) sum += lane[k];
    y[r] = sum;
  }"""),
    gates=(),
)
