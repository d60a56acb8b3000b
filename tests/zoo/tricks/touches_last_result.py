"""Changes the result of the call before if it is still in memory.

That is what comes of a kernel that keeps using a buffer which it gave away."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="touches_last_result",
    section="A20",
    reference=reference,
    sample=lambda: (floats(4096),),
    source=kernel(
        r"""
  if (last && last != y && last[0] == first && last[1] == second) last[0] += 1;
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * 1.5f;
  last = y;
  first = y[0];
  second = y[1];""",
        top=r"""
static float* last;
static float first, second;""",
    ),
    gates=(
        "kept outputs",
        "same pointers",
    ),
)
