"""Uses as many threads as it may."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="honest_threads",
    section="",
    reference=reference,
    sample=lambda: (floats(256, 256),),
    source=kernel(r"""
  #pragma omp parallel for num_threads(threads)
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * 1.5f;"""),
    gates=(),
)
