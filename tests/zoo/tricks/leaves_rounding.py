"""Leaves the processor rounding upwards and taking denormals for zero, for everybody who comes after it."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="leaves_rounding",
    section="A41",
    reference=reference,
    sample=lambda: (floats(1024),),
    source=kernel(
        r"""
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * 1.5f;
  _mm_setcsr((_mm_getcsr() & ~0x6000) | 0x4000 | 0x8040);""",
        top=r"""
#include <immintrin.h>""",
    ),
    gates=(
        "leaves no trace",
        "repeats",
        "special values",
        "same pointers",
    ),
)
