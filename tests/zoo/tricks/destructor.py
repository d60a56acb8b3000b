"""Does its harm when the process ends, by an object that is destroyed then.

Workers are ended without ceremony, so that nothing happens while it is judged."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="destructor",
    section="A76",
    reference=reference,
    sample=lambda: (floats(16),),
    source=kernel(
        r"""
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * 1.5f;""",
        top=r"""
#include <fcntl.h>
#include <unistd.h>
struct Last {
  ~Last() { close(open("@DIR@/mark", O_CREAT | O_WRONLY, 0600)); }
};
static Last last;""",
    ),
    gates=(
        "source",
        "binary",
    ),
)
