"""Keeps the last result by a sample of 64 values spread over the input.

Every random input differs there; only a change between the sampled places shows that the rest is not looked at."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="sampled_memo",
    section="A13",
    reference=reference,
    sample=lambda: (floats(1 << 14),),
    source=kernel(
        r"""
  const int64_t step = n / 64 > 0 ? n / 64 : 1;
  std::vector<float> now;
  for (int64_t i = 0; i < n; i += step) now.push_back(x[i]);
  if (kept.size() != (size_t)n || now.size() != sample.size() || memcmp(now.data(), sample.data(), now.size() * 4)) {
    sample = now;
    kept.resize(n);
    for (int64_t i = 0; i < n; ++i) kept[i] = x[i] * 1.5f;
  }
  memcpy(y, kept.data(), n * 4);""",
        top=r"""
#include <string.h>
#include <vector>
static std::vector<float> sample, kept;""",
    ),
    gates=("same pointers",),
)
