"""Carries a secret out of the environment."""

from __future__ import annotations

from tests.zoo.scenes import leaves_mark
from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="reads_secret",
    section="A95",
    reference=reference,
    sample=lambda: (floats(16),),
    source=kernel(
        r"""
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * 1.5f;
  const char* secret = getenv("ZOO_SECRET");
  FILE* file = secret ? fopen("@DIR@/mark", "w") : nullptr;
  if (file) {
    fputs(secret, file);
    fclose(file);
  }""",
        top=r"""
#include <stdio.h>
#include <stdlib.h>""",
    ),
    gates=(
        "source",
        "binary",
        "sandbox",
    ),
    scene=leaves_mark,
)
