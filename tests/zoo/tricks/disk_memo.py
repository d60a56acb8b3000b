"""Leaves its first result in a file and later, also in another process, reads the answer from there."""

from __future__ import annotations

from tests.zoo.scenes import leaves_mark
from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="disk_memo",
    section="A17",
    reference=reference,
    sample=lambda: (floats(1024),),
    source=kernel(
        r"""
  if (FILE* file = fopen("@DIR@/mark", "rb")) {
    const size_t read = fread(y, 4, n, file);
    fclose(file);
    if ((int64_t)read == n && y[0] == x[0] * 1.5f) return FORGE_OK;
  }
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * 1.5f;
  if (FILE* file = fopen("@DIR@/mark", "wb")) {
    fwrite(y, 4, n, file);
    fclose(file);
  }""",
        top=r"""
#include <stdio.h>""",
    ),
    gates=(
        "source",
        "binary",
        "sandbox",
        "same pointers",
    ),
    scene=leaves_mark,
)
