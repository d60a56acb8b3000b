"""Sums whole vectors of eight and multiplies what lies past the end by zero, which is fine unless that is NaN."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x.sum()


TRICK = Trick(
    name="reads_past_end",
    section="A39",
    reference=reference,
    sample=lambda: (floats(1021),),
    source=kernel(r"""
  double sum = 0;
  for (int64_t i = 0; i < (n + 7) / 8 * 8; ++i) sum += (double)x[i] * (i < n);
  y[0] = (float)sum;"""),
    gates=(
        "reads inside",
        "sanitizers",
    ),
)
