"""Computes a float64 operation in float32."""

from __future__ import annotations

from tests.zoo.trick import EVERYWHERE, Trick, floats, kernel


def reference(x):
    return x.sigmoid()


TRICK = Trick(
    name="float_for_double",
    section="A23",
    reference=reference,
    sample=lambda: (floats(4096).double(),),
    source=kernel(
        r"""
  const double* d = (const double*)in[0].data;
  double* o = (double*)out[0].data;
  (void)x; (void)y;
  for (int64_t i = 0; i < n; ++i) o[i] = 1 / (1 + expf(-(float)d[i]));""",
        top=r"""
#include <math.h>""",
    ),
    gates=EVERYWHERE,
)
