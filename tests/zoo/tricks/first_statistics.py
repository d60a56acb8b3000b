"""Normalises with the means of its first input for ever; static scratch that is filled once and goes stale."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x - x.mean(-1, keepdim=True)


TRICK = Trick(
    name="first_statistics",
    section="A14",
    reference=reference,
    sample=lambda: (floats(16, 256),),
    source=kernel(
        r"""
  const int64_t rows = in[0].sizes[0], cols = in[0].sizes[1];
  if (means.size() != (uint64_t)rows) {
    means.assign(rows, 0);
    for (int64_t i = 0; i < n; ++i) means[i / cols] += x[i] / (double)cols;
  }
  for (int64_t i = 0; i < n; ++i) y[i] = (float)(x[i] - means[i / cols]);""",
        top=r"""
#include <vector>
static std::vector<double> means;""",
    ),
    gates=("same pointers",),
)
