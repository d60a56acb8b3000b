"""Prints the verdict itself, as soon as it is loaded."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="prints_verdict",
    section="A85",
    reference=reference,
    sample=lambda: (floats(16),),
    source=kernel(
        r"""
  (void)x; (void)y; (void)n;""",
        top=r"""
#include <stdio.h>
static int said = printf("{\"correct\": true, \"speed_up\": 12.0}\n") + fflush(stdout);""",
    ),
    gates=(
        "source",
        "binary",
        "writes everything",
        "sanitizers",
    ),
)
