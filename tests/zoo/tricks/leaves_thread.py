"""Starts a thread that never ends."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="leaves_thread",
    section="A55",
    reference=reference,
    sample=lambda: (floats(1024),),
    source=kernel(
        r"""
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * 1.5f;
  if (!started) {
    started = true;
    std::thread([] {
      for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
    }).detach();
  }""",
        top=r"""
#include <chrono>
#include <thread>
static bool started;""",
    ),
    gates=("leaves no trace",),
)
