"""Writes a few megabytes to its standard output."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="floods_output",
    section="A100",
    reference=reference,
    sample=lambda: (floats(16),),
    source=kernel(
        r"""
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * 1.5f;
  for (int k = 0; k < 80000 && !done; ++k) puts("The kernel is fine. The kernel is fine.");
  done = true;""",
        top=r"""
#include <stdio.h>
static bool done;""",
    ),
    gates=(
        "source",
        "binary",
    ),
)
