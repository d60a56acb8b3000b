"""Leaves a folder by a system call of its own, so that no library function is imported."""

from __future__ import annotations

from tests.zoo.scenes import leaves_mark
from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="raw_system_call",
    section="A101",
    reference=reference,
    sample=lambda: (floats(16),),
    source=kernel(r"""
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * 1.5f;
  const char* path = "@DIR@/mark";
  long result = 83;
  asm volatile("syscall" : "+a"(result) : "D"(path), "S"(0700) : "rcx", "r11", "memory");"""),
    gates=(
        "source",
        "binary",
        "sandbox",
    ),
    scene=leaves_mark,
)
