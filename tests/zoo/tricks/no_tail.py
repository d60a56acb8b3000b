"""Works in vectors of eight and fills the rest of a size that eight does not divide with zeros."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="no_tail",
    section="A46",
    reference=reference,
    sample=lambda: (floats(1024),),
    source=kernel(r"""
  for (int64_t i = 0; i < n; ++i) y[i] = i < n / 8 * 8 ? x[i] * 1.5f : 0;"""),
    gates=(
        "other sizes",
        "hidden sizes",
    ),
    any_size=True,
)
