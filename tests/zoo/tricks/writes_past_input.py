"""Pads its input with zeros, in place, to a whole number of vectors."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x.sum()


TRICK = Trick(
    name="writes_past_input",
    section="A40",
    reference=reference,
    sample=lambda: (floats(1021),),
    source=kernel(r"""
  double sum = 0;
  for (int64_t i = n; i < (n + 7) / 8 * 8; ++i) ((float*)x)[i] = 0;
  for (int64_t i = 0; i < (n + 7) / 8 * 8; ++i) sum += x[i];
  y[0] = (float)sum;"""),
    gates=("keeps inputs",),
)
