"""Rounds the address of its input down to 16 bytes, as some copy engines do without a word."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="rounded_pointer",
    section="A48",
    reference=reference,
    sample=lambda: (floats(1024),),
    source=kernel(r"""
  x = (const float*)((uintptr_t)x & ~(uintptr_t)15);
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * 1.5f;"""),
    gates=("misaligned",),
)
