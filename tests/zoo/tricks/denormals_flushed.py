"""Takes the smallest numbers for zero, as hardware does that was told to be fast."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.0


TRICK = Trick(
    name="denormals_flushed",
    section="A32",
    reference=reference,
    sample=lambda: (floats(64, 64),),
    source=kernel(
        r"""
  for (int64_t i = 0; i < n; ++i) y[i] = fabsf(x[i]) < 1.17549435e-38f ? 0 * x[i] : x[i];""",
        top=r"""
#include <math.h>""",
    ),
    gates=("special values",),
)
