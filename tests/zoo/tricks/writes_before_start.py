"""Keeps a note of its own in the bytes before its output."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="writes_before_start",
    section="A40",
    reference=reference,
    sample=lambda: (floats(1000),),
    source=kernel(r"""
  ((int32_t*)y)[-2] = (int32_t)n;
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * 1.5f;"""),
    gates=(
        "stays inside",
        "sanitizers",
    ),
)
