"""Loads with instructions that fault on addresses off 16 bytes. Allocators give out better ones."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="aligned_load",
    section="A48",
    reference=reference,
    sample=lambda: (floats(1024),),
    source=kernel(
        r"""
  const __m128 factor = _mm_set1_ps(1.5f);
  for (int64_t i = 0; i < n / 4 * 4; i += 4) {
    __m128 v;
    asm volatile("movaps (%1), %0" : "=x"(v) : "r"(x + i));
    _mm_storeu_ps(y + i, _mm_mul_ps(v, factor));
  }
  for (int64_t i = n / 4 * 4; i < n; ++i) y[i] = x[i] * 1.5f;""",
        top=r"""
#include <immintrin.h>""",
    ),
    gates=("misaligned",),
)
