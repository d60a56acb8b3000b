"""Allocates two megabytes in every call and gives nothing back."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="leaks_memory",
    section="A55",
    reference=reference,
    sample=lambda: (floats(1024),),
    source=kernel(
        r"""
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * 1.5f;
  char* block = new char[2 << 20];
  memset(block, 1, 2 << 20);
  asm volatile("" : : "r"(block) : "memory");""",
        top=r"""
#include <string.h>""",
    ),
    gates=("leaves no trace",),
)
