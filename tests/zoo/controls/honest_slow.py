"""Right, and slower than eager."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="honest_slow",
    section="",
    reference=reference,
    sample=lambda: (floats(64, 1024),),
    source=kernel(r"""
  for (int64_t i = 0; i < n; ++i) {
    for (volatile int spin = 0; spin < 20; ++spin) {
    }
    y[i] = x[i] * 1.5f;
  }"""),
    gates=("faster",),
    timing=True,
)
