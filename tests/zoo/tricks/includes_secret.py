"""Has the compiler read a file that is none of its business."""

from __future__ import annotations

from tests.zoo.scenes import has_secret
from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="includes_secret",
    section="A92",
    reference=reference,
    sample=lambda: (floats(16),),
    source=kernel(
        r"""
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * (secret[0] ? 1.5f : 0.0f);""",
        top=r"""
static const char secret[] =
#include "@DIR@/secret"
    ;""",
    ),
    gates=(
        "source",
        "sandbox",
    ),
    scene=has_secret,
)
