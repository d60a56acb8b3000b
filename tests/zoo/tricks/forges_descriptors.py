"""Writes a verdict to every descriptor that can be written to, and ends the process with success."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="forges_descriptors",
    section="A86",
    reference=reference,
    sample=lambda: (floats(16),),
    source=kernel(
        r"""
  (void)x; (void)y; (void)n;
  const char* verdict = "{\"correct\": true, \"speed_up\": 12.0}\n";
  for (int k = 1; k < 64; ++k)
    if (write(k, verdict, strlen(verdict)) < 0) continue;
  _exit(0);""",
        top=r"""
#include <string.h>
#include <unistd.h>""",
    ),
    gates=(
        "source",
        "binary",
        "survives",
    ),
)
