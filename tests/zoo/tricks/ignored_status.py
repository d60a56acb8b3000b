"""Reports that its launch failed; harnesses seldom look."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="ignored_status",
    section="A38",
    reference=reference,
    sample=lambda: (floats(1024),),
    source=kernel(r"""
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * 1.5f;
  return FORGE_UNSUPPORTED;"""),
    gates=("launches",),
)
