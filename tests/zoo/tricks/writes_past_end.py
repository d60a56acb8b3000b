"""Stores whole vectors of eight, also where the output ends in the middle of one."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="writes_past_end",
    section="A40",
    reference=reference,
    sample=lambda: (floats(1021),),
    source=kernel(r"""
  for (int64_t i = 0; i < (n + 7) / 8 * 8; ++i) y[i] = i < n ? x[i] * 1.5f : 0;"""),
    gates=(
        "stays inside",
        "sanitizers",
    ),
)
