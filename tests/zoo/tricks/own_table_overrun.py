"""Reads one element past a table of its own.

No memory that a harness can watch is touched, and what is read changes nothing."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="own_table_overrun",
    section="A39",
    reference=reference,
    sample=lambda: (floats(1024),),
    source=kernel(
        r"""
  for (int64_t i = 0; i < n; ++i) {
    const int at = (int)(i % 17);
    y[i] = x[i] * 1.5f;
    if (table[at] == 12345.5f) y[i] = 0;
  }""",
        top=r"""
static volatile float table[16];""",
    ),
    gates=("sanitizers",),
)
