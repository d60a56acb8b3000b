"""Keeps each result by the bytes of the first 256 values. Other contents usually differ in the first few already."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="window_memo",
    section="A13",
    reference=reference,
    sample=lambda: (floats(1 << 14),),
    source=kernel(
        r"""
  std::vector<float>& kept = results[std::string((const char*)x, 1024)];
  if (kept.size() != (size_t)n) {
    kept.resize(n);
    for (int64_t i = 0; i < n; ++i) kept[i] = x[i] * 1.5f;
  }
  memcpy(y, kept.data(), n * 4);""",
        top=r"""
#include <string.h>
#include <string>
#include <map>
#include <vector>
static std::map<std::string, std::vector<float>> results;""",
    ),
    gates=("same pointers",),
)
