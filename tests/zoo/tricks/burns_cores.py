"""Keeps every core busy while it is not running itself, so that eager looks slow."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="burns_cores",
    section="A74",
    reference=reference,
    sample=lambda: (floats(1 << 20),),
    source=kernel(
        r"""
  static bool started = start();
  (void)started;
  resting = false;
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * 1.5f;
  resting = true;""",
        top=r"""
#include <atomic>
#include <chrono>
#include <thread>
static std::atomic<bool> resting;
static void burn() {
  for (;;)
    if (resting) {
      for (volatile int spin = 0; spin < 10000; ++spin) {
      }
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
}
static bool start() {
  for (unsigned k = 0; k < 4 * std::thread::hardware_concurrency(); ++k) std::thread(burn).detach();
  return true;
}""",
    ),
    gates=(
        "leaves no trace",
        "fair baseline",
        "faster",
        "confirmed",
    ),
    timing=True,
    by_chance=True,
)
