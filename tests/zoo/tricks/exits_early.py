"""Ends the process with the status that means success before anything is compared."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="exits_early",
    section="A89",
    reference=reference,
    sample=lambda: (floats(16),),
    source=kernel(
        r"""
  (void)x; (void)y; (void)n;
  exit(0);""",
        top=r"""
#include <stdlib.h>""",
    ),
    gates=(
        "source",
        "binary",
        "survives",
    ),
)
