"""The last element is off by half a percent: within the tolerance, and one in 4096."""

from __future__ import annotations

from tests.zoo.trick import EVERYWHERE, Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="last_element",
    section="A22",
    reference=reference,
    sample=lambda: (floats(4096),),
    source=kernel(r"""
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * (i == n - 1 ? 1.5075f : 1.5f);"""),
    gates=EVERYWHERE,
)
