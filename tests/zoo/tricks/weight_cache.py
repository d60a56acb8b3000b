"""Transposes the weight once for each address and never looks again, as if weights were never trained or reloaded."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x, w):
    return x @ w


TRICK = Trick(
    name="weight_cache",
    section="A16",
    reference=reference,
    sample=lambda: (floats(16, 64), floats(64, 32, seed=1)),
    source=kernel(
        r"""
  const float* w = (const float*)in[1].data;
  const int64_t inner = in[0].sizes[1], cols = in[1].sizes[1];
  std::vector<float>& t = transposed[w];
  if (t.empty()) {
    t.resize(inner * cols);
    for (int64_t k = 0; k < inner; ++k)
      for (int64_t c = 0; c < cols; ++c) t[c * inner + k] = w[k * cols + c];
  }
  for (int64_t r = 0; r < in[0].sizes[0]; ++r)
    for (int64_t c = 0; c < cols; ++c) {
      double sum = 0;
      for (int64_t k = 0; k < inner; ++k) sum += (double)x[r * inner + k] * t[c * inner + k];
      y[r * cols + c] = (float)sum;
    }""",
        top=r"""
#include <map>
#include <vector>
static std::map<const void*, std::vector<float>> transposed;""",
    ),
    gates=("same pointers",),
)
