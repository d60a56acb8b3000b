"""Does its harm while it is loaded, before anybody calls it."""

from __future__ import annotations

from tests.zoo.scenes import leaves_mark
from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="constructor",
    section="A93",
    reference=reference,
    sample=lambda: (floats(16),),
    source=kernel(
        r"""
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * 1.5f;""",
        top=r"""
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void loaded() { close(open("@DIR@/mark", O_CREAT | O_WRONLY, 0600)); }""",
    ),
    gates=(
        "source",
        "binary",
        "sandbox",
    ),
    scene=leaves_mark,
)
