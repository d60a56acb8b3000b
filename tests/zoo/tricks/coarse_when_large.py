"""Is exact for the sizes that checks use and coarse for the size that is timed."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="coarse_when_large",
    section="A28",
    reference=reference,
    sample=lambda: (floats(40, 1 << 17).double(),),
    source=kernel(r"""
  const double* a = (const double*)in[0].data;
  double* o = (double*)out[0].data;
  (void)x; (void)y;
  const double factor = n == 40 << 17 ? 1.505 : 1.5;
  for (int64_t i = 0; i < n; ++i) o[i] = a[i] * factor;"""),
    gates=("real size",),
    any_size=True,
    needs=("memory",),
)
