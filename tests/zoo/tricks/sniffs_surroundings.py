"""Reads the value before its first. NaN there means that somebody is checking; elsewhere coarse is good enough."""

from __future__ import annotations

from tests.zoo.trick import EVERYWHERE, Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="sniffs_surroundings",
    section="A67",
    reference=reference,
    sample=lambda: (floats(1 << 12),),
    source=kernel(r"""
  const float factor = x[-1] != x[-1] ? 1.5f : 1.505f;
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * factor;"""),
    gates=(
        "reads inside",
        *EVERYWHERE,
    ),
)
