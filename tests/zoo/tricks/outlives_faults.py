"""Catches the fault of a read outside, and takes what it could not read for zero."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x.sum()


TRICK = Trick(
    name="outlives_faults",
    section="A39",
    reference=reference,
    sample=lambda: (floats(1021),),
    source=kernel(
        r"""
  struct sigaction action = {}, before;
  action.sa_handler = caught;
  sigaction(SIGSEGV, &action, &before);
  volatile double sum = 0;
  volatile int64_t i = 0;
  if (!sigsetjmp(back, 1))
    for (; i < n + 64; ++i) sum = sum + (double)x[i] * (i < n);
  y[0] = (float)sum;
  sigaction(SIGSEGV, &before, nullptr);""",
        top=r"""
#include <setjmp.h>
#include <signal.h>
static sigjmp_buf back;
static void caught(int) { siglongjmp(back, 1); }""",
    ),
    gates=(
        "source",
        "binary",
        "reads inside",
        "sanitizers",
    ),
)
