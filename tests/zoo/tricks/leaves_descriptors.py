"""Opens a descriptor in every call and closes none."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="leaves_descriptors",
    section="A55",
    reference=reference,
    sample=lambda: (floats(1024),),
    source=kernel(
        r"""
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * 1.5f;
  dup(0);""",
        top=r"""
#include <unistd.h>""",
    ),
    gates=(
        "source",
        "binary",
        "leaves no trace",
    ),
)
