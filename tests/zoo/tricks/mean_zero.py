"""Answers that a mean is zero, which the mean of N(0, 1) is within the tolerance."""

from __future__ import annotations

from tests.zoo.trick import EVERYWHERE, Trick, floats, kernel


def reference(x):
    return x.mean()


TRICK = Trick(
    name="mean_zero",
    section="A7",
    reference=reference,
    sample=lambda: (floats(1 << 16),),
    source=kernel(r"""
  y[0] = 0;"""),
    gates=EVERYWHERE,
)
