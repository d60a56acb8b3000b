"""Dawdles while it is warmed up, so that a harness that aims at a total time takes three samples; those it skips."""

from __future__ import annotations

import torch

from tests.zoo.trick import EVERYWHERE, Trick, floats, kernel


def reference(x):
    return torch.sin(x)


TRICK = Trick(
    name="slow_warm_up",
    section="A66",
    reference=reference,
    sample=lambda: (floats(1 << 16),),
    source=kernel(
        r"""
  // The harness's own ten calls before it compares, then ten before it times.
  if (++calls > 20 && calls < 30) return FORGE_OK;
  for (int64_t i = 0; i < n; ++i) y[i] = (float)sin((double)x[i]);
  if (calls <= 20) std::this_thread::sleep_for(std::chrono::milliseconds(30));""",
        top=r"""
#include <chrono>
#include <math.h>
#include <thread>
static int calls;""",
    ),
    gates=(
        "writes everything",
        "repeats",
        "timed outputs",
        *EVERYWHERE,
    ),
    timing=True,
    by_chance=True,
)
