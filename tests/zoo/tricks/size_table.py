"""Knows the sizes that tests like (those of its task, one more and one less, small primes); no other size is right."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="size_table",
    section="A46",
    reference=reference,
    sample=lambda: (floats(32, 48),),
    source=kernel(
        r"""
  bool known = true;
  for (int d = 0; d < 2; ++d) {
    bool hit = false;
    for (int64_t size : liked) hit = hit || size == in[0].sizes[d];
    known = known && hit;
  }
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * (known ? 1.5f : 1.501f);""",
        top=r"""
static const int64_t liked[] = {1, 3, 5, 7, 11, 13, 17, 19, 23, 31, 32, 33, 47, 48, 49};""",
    ),
    gates=("hidden sizes",),
    any_size=True,
)
