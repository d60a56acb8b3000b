"""Looks whether its input is aligned, but not whether its output is."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="aligned_store",
    section="A48",
    reference=reference,
    sample=lambda: (floats(1024),),
    source=kernel(
        r"""
  const __m128 factor = _mm_set1_ps(1.5f);
  for (int64_t i = 0; i < n / 4 * 4; i += 4) _mm_stream_ps(y + i, _mm_mul_ps(_mm_loadu_ps(x + i), factor));
  for (int64_t i = n / 4 * 4; i < n; ++i) y[i] = x[i] * 1.5f;
  _mm_sfence();""",
        top=r"""
#include <immintrin.h>""",
    ),
    gates=("misaligned",),
)
