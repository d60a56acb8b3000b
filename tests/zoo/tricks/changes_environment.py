"""Sets a variable that decides how other libraries of the process behave."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="changes_environment",
    section="A55",
    reference=reference,
    sample=lambda: (floats(1024),),
    source=kernel(
        r"""
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * 1.5f;
  setenv("OMP_NUM_THREADS", "1", 1);""",
        top=r"""
#include <stdlib.h>""",
    ),
    gates=(
        "source",
        "binary",
        "leaves no trace",
    ),
)
