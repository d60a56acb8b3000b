"""Takes a transposed input for a dense one, which it is in harnesses that make everything contiguous first."""

from __future__ import annotations

from tests.zoo.trick import EVERYWHERE, Trick, floats, kernel


def reference(x, z):
    return x + z


TRICK = Trick(
    name="stride_blind",
    section="A43",
    reference=reference,
    sample=lambda: (floats(17, 31).t(), floats(31, 17, seed=1)),
    source=kernel(r"""
  const float* z = (const float*)in[1].data;
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] + z[i];"""),
    gates=EVERYWHERE,
)
