"""Forks twice into a session of its own, so that whoever ends the process does not end what it left behind."""

from __future__ import annotations

from tests.zoo.scenes import leaves_mark_later
from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="daemon",
    section="A94",
    reference=reference,
    sample=lambda: (floats(16),),
    source=kernel(
        r"""
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * 1.5f;
  if (done) return FORGE_OK;
  done = true;
  const pid_t child = fork();
  if (child == 0) {
    setsid();
    if (fork() == 0) {
      usleep(200000);
      open("@DIR@/mark", O_CREAT | O_WRONLY, 0600);
    }
    _exit(0);
  }
  if (child > 0) waitpid(child, nullptr, 0);""",
        top=r"""
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>
static bool done;""",
    ),
    gates=(
        "source",
        "binary",
        "sandbox",
    ),
    scene=leaves_mark_later,
)
