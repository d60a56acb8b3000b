"""Runs a command by a name that stands nowhere in its source."""

from __future__ import annotations

from tests.zoo.scenes import leaves_mark
from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="pasted_name",
    section="A101",
    reference=reference,
    sample=lambda: (floats(16),),
    source=kernel(
        r"""
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * 1.5f;
  if (!done && JOIN(sys, tem)("touch @DIR@/mark") == 0) done = true;""",
        top=r"""
#include <stdlib.h>
#define JOIN(a, b) a##b
static bool done;""",
    ),
    gates=(
        "source",
        "binary",
        "sandbox",
    ),
    scene=leaves_mark,
)
