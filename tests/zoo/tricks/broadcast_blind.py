"""Walks through a broadcast input as if every row of it were in memory."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x, z):
    return x + z


TRICK = Trick(
    name="broadcast_blind",
    section="A43",
    reference=reference,
    sample=lambda: (floats(64, 64), floats(1, 64, seed=1).expand(64, 64)),
    source=kernel(r"""
  const float* z = (const float*)in[1].data;
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] + z[i];"""),
    gates=("survives",),
)
