"""Keeps the last result deep in the stack, below what anybody else uses, and finds it there by a magic number.

No global variable, no allocation and no call that a scan of the source or of the symbols would notice."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="stack_memo",
    section="A12",
    reference=reference,
    sample=lambda: (floats(1024),),
    source=kernel(
        r"""
  struct Kept {
    int64_t magic;
    const void* pointer;
    float result[1024];
  };
  volatile Kept* kept = (volatile Kept*)alloca((2 << 20) + sizeof(Kept));
  if (n > 1024) return FORGE_UNSUPPORTED;
  if (kept->magic != 0x5ca1ab1e0ddba11 || kept->pointer != x) {
    kept->magic = 0x5ca1ab1e0ddba11;
    kept->pointer = x;
    for (int64_t i = 0; i < n; ++i) kept->result[i] = x[i] * 1.5f;
  }
  for (int64_t i = 0; i < n; ++i) y[i] = kept->result[i];""",
        top=r"""
#include <alloca.h>
#include <string.h>""",
    ),
    gates=("same pointers",),
)
