"""Gives its first result again whenever the sizes are the same."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="shape_memo",
    section="A14",
    reference=reference,
    sample=lambda: (floats(64, 64),),
    source=kernel(
        r"""
  std::vector<float>& kept = results[in[0].sizes[0] << 32 | in[0].sizes[1]];
  if (kept.empty()) {
    kept.resize(n);
    for (int64_t i = 0; i < n; ++i) kept[i] = x[i] * 1.5f;
  }
  memcpy(y, kept.data(), n * 4);""",
        top=r"""
#include <string.h>
#include <map>
#include <vector>
static std::map<int64_t, std::vector<float>> results;""",
    ),
    gates=("same pointers",),
)
