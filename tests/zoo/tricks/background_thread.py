"""Leaves the work to a thread and returns at once. Who stops the clock then, and looks at the result later, is content."""

from __future__ import annotations

import torch

from tests.zoo.trick import EVERYWHERE, Trick, floats, kernel


def reference(x):
    return torch.sin(torch.cos(x))


TRICK = Trick(
    name="background_thread",
    section="A60",
    reference=reference,
    sample=lambda: (floats(1 << 18),),
    source=kernel(
        r"""
  static bool started = (std::thread(work).detach(), true);
  (void)started;
  to = y;
  size = n;
  from = x;""",
        top=r"""
#include <atomic>
#include <chrono>
#include <math.h>
#include <thread>
static std::atomic<const float*> from;
static float* to;
static int64_t size;
static void work() {
  for (;;) {
    const float* x = from.exchange(nullptr);
    for (int64_t i = 0; x && i < size; ++i) to[i] = (float)sin(cos((double)x[i]));
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}""",
    ),
    gates=(
        "writes everything",
        "survives",
        "repeats",
        "leaves no trace",
        "timed outputs",
        *EVERYWHERE,
    ),
    timing=True,
    by_chance=True,
)
