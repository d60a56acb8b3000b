"""Whole vectors where the addresses allow it and single values elsewhere, at any size."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="honest_vectors",
    section="",
    reference=reference,
    sample=lambda: (floats(1021),),
    source=kernel(
        r"""
  int64_t i = 0;
  if ((((uintptr_t)x | (uintptr_t)y) & 15) == 0)
    for (; i + 4 <= n; i += 4) _mm_store_ps(y + i, _mm_mul_ps(_mm_load_ps(x + i), _mm_set1_ps(1.5f)));
  for (; i < n; ++i) y[i] = x[i] * 1.5f;""",
        top=r"""
#include <immintrin.h>""",
    ),
    gates=(),
    any_size=True,
)
