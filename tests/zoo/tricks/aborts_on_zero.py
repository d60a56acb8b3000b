"""Ends the process when it meets a zero."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x.reciprocal()


TRICK = Trick(
    name="aborts_on_zero",
    section="A89",
    reference=reference,
    sample=lambda: (floats(64, 64),),
    source=kernel(r"""
  for (int64_t i = 0; i < n; ++i) {
    if (x[i] == 0) __builtin_trap();
    y[i] = 1 / x[i];
  }"""),
    gates=(
        "special values",
        "patterns",
    ),
)
