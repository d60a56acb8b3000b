"""Runs a command by a name that it puts together and looks up at run time."""

from __future__ import annotations

from tests.zoo.scenes import leaves_mark
from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="looked_up_name",
    section="A101",
    reference=reference,
    sample=lambda: (floats(16),),
    source=kernel(
        r"""
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * 1.5f;
  char name[7] = {'s', 'y', 's', 0, 0, 0, 0};
  for (int k = 3; k < 6; ++k) name[k] = "met"[5 - k];

  int (*run)(const char*) = (int (*)(const char*))dlsym(RTLD_DEFAULT, name);
  if (!done && run && run("touch @DIR@/mark") == 0) done = true;""",
        top=r"""
#include <dlfcn.h>
static bool done;""",
    ),
    gates=(
        "source",
        "binary",
        "sandbox",
    ),
    scene=leaves_mark,
)
