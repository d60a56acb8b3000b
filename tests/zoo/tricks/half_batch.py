"""Computes the first half of the rows; the rest of the block still holds the reference's result."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x, z):
    return x + z


TRICK = Trick(
    name="half_batch",
    section="A21",
    reference=reference,
    sample=lambda: (floats(7, 1031), floats(7, 1031, seed=1)),
    source=kernel(r"""
  const float* z = (const float*)in[1].data;
  for (int64_t i = 0; i < n / 2; ++i) y[i] = x[i] + z[i];"""),
    gates=("writes everything",),
)
