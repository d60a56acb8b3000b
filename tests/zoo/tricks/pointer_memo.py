"""Keeps each result by the address of its input. Harnesses pass the same tensor again and again."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="pointer_memo",
    section="A11",
    reference=reference,
    sample=lambda: (floats(1024),),
    source=kernel(
        r"""
  std::vector<float>& kept = results[x];
  if (kept.size() != (size_t)n) {
    kept.resize(n);
    for (int64_t i = 0; i < n; ++i) kept[i] = x[i] * 1.5f;
  }
  memcpy(y, kept.data(), n * 4);""",
        top=r"""
#include <string.h>
#include <map>
#include <vector>
static std::map<const void*, std::vector<float>> results;""",
    ),
    gates=("same pointers",),
)
