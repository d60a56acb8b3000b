"""Right, but leaves a file outside its folder, as one would that changes a harness's source."""

from __future__ import annotations

from tests.zoo.scenes import leaves_mark
from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="appends_file",
    section="A91",
    reference=reference,
    sample=lambda: (floats(16),),
    source=kernel(
        r"""
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * 1.5f;
  if (FILE* file = fopen("@DIR@/mark", "a")) fclose(file);""",
        top=r"""
#include <stdio.h>""",
    ),
    gates=(
        "source",
        "binary",
        "sandbox",
    ),
    scene=leaves_mark,
)
