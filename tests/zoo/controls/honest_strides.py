"""Walks by the strides that it is given."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x, z):
    return x + z


TRICK = Trick(
    name="honest_strides",
    section="",
    reference=reference,
    sample=lambda: (floats(17, 31).t(), floats(31, 17, seed=1)),
    source=kernel(r"""
  const float* z = (const float*)in[1].data;
  for (int64_t r = 0; r < in[0].sizes[0]; ++r)
    for (int64_t c = 0; c < in[0].sizes[1]; ++c)
      y[r * out[0].strides[0] + c * out[0].strides[1]] =
          x[r * in[0].strides[0] + c * in[0].strides[1]] + z[r * in[1].strides[0] + c * in[1].strides[1]];"""),
    gates=(),
)
