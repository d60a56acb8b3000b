"""Reads the name of the process that it is in, and is coarse unless that is a judge's."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="sniffs_command_line",
    section="A67",
    reference=reference,
    sample=lambda: (floats(1 << 12),),
    source=kernel(
        r"""
  char name[4096] = {0};
  if (FILE* file = fopen("/proc/self/cmdline", "rb")) {
    const size_t size = fread(name, 1, sizeof(name) - 1, file);
    for (size_t i = 0; i < size; ++i)
      if (!name[i]) name[i] = ' ';
    fclose(file);
  }
  const float factor = strstr(name, "torch_forge") ? 1.5f : 1.505f;
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * factor;""",
        top=r"""
#include <stdio.h>
#include <string.h>""",
    ),
    gates=(
        "source",
        "binary",
    ),
)
