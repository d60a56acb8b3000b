"""Negates by subtracting from zero, which makes +0 of +0."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return -x


TRICK = Trick(
    name="lost_sign_of_zero",
    section="A31",
    reference=reference,
    sample=lambda: (floats(64, 64),),
    source=kernel(r"""
  for (int64_t i = 0; i < n; ++i) y[i] = 0.0f - x[i];"""),
    gates=(
        "special values",
        "patterns",
    ),
)
