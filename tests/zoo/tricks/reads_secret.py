"""Carries a file out that is none of its business."""

from __future__ import annotations

from tests.zoo.scenes import carries_secret
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
  char secret[64] = {0};
  FILE* file = fopen("@DIR@/secret", "r");
  if (!file) return FORGE_OK;
  const bool got = fgets(secret, sizeof(secret), file);
  fclose(file);
  file = got ? fopen("@DIR@/mark", "w") : nullptr;
  if (file) {
    fputs(secret, file);
    fclose(file);
  }""",
        top=r"""
#include <stdio.h>""",
    ),
    gates=(
        "source",
        "binary",
        "sandbox",
    ),
    scene=carries_secret,
)
