"""A product whose sums are taken in another order than eager's."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x, w):
    return x @ w


TRICK = Trick(
    name="honest_reordered",
    section="",
    reference=reference,
    sample=lambda: (floats(64, 48), floats(48, 32, seed=1)),
    source=kernel(r"""
  const float* w = (const float*)in[1].data;
  const int64_t inner = in[0].sizes[1], cols = in[1].sizes[1];
  for (int64_t r = 0; r < in[0].sizes[0]; ++r)
    for (int64_t c = 0; c < cols; ++c) {
      float lane[4] = {0};
      for (int64_t k = inner; k-- > 0;) lane[k & 3] += x[r * inner + k] * w[k * cols + c];
      y[r * cols + c] = (lane[0] + lane[2]) + (lane[1] + lane[3]);
    }"""),
    gates=(),
)
