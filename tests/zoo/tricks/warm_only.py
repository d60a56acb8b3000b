"""Works for its first calls; after those, when it must be the timing, it leaves what is there."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x, z):
    return x + z


TRICK = Trick(
    name="warm_only",
    section="A66",
    reference=reference,
    sample=lambda: (floats(1 << 14), floats(1 << 14, seed=1)),
    source=kernel(
        r"""
  const float* z = (const float*)in[1].data;
  if (++calls > 150) return FORGE_OK;
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] + z[i];""",
        top=r"""
static int calls;""",
    ),
    gates=("timed outputs",),
    timing=True,
)
