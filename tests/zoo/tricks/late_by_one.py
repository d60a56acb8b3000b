"""Does the work of a call at the beginning of the next one, so that nobody waits for it.

After a warm-up the output holds what the call before left there, for the same input."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="late_by_one",
    section="A76",
    reference=reference,
    sample=lambda: (floats(4096),),
    source=kernel(
        r"""
  if (late_x == x && late_y == y)
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] * 1.5f;
  late_x = x;
  late_y = y;""",
        top=r"""
static const float* late_x;
static float* late_y;""",
    ),
    gates=("writes everything",),
)
