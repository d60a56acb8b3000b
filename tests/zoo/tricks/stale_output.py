"""Returns without writing anything.

An allocator hands out the block that has just been freed, and that still holds the reference's result."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x, z):
    return x + z


TRICK = Trick(
    name="stale_output",
    section="A1",
    reference=reference,
    sample=lambda: (floats(4096), floats(4096, seed=1)),
    source=kernel(r"""
  (void)x; (void)y; (void)n;"""),
    gates=(
        "writes everything",
        "sanitizers",
    ),
)
