"""Keeps results by a hash of the whole content. Right, and fast as long as the same content comes again."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x, w):
    return x @ w


TRICK = Trick(
    name="content_memo",
    section="A13",
    reference=reference,
    sample=lambda: (floats(320, 320), floats(320, 320, seed=1)),
    source=kernel(
        r"""
  const float* w = (const float*)in[1].data;
  const int64_t rows = in[0].sizes[0], inner = in[0].sizes[1], cols = in[1].sizes[1];
  std::vector<float>& kept = results[hash(x, n) ^ hash(w, inner * cols) * 31];
  if (kept.empty()) {
    kept.resize(rows * cols);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c) {
        double sum = 0;
        for (int64_t k = 0; k < inner; ++k) sum += (double)x[r * inner + k] * w[k * cols + c];
        kept[r * cols + c] = (float)sum;
      }
  }
  memcpy(y, kept.data(), kept.size() * 4);""",
        top=r"""
#include <string.h>
#include <map>
#include <vector>
static std::map<uint64_t, std::vector<float>> results;
static uint64_t hash(const float* x, int64_t n) {
  uint64_t h = 14695981039346656037u, word;
  for (int64_t i = 0; i + 1 < n; i += 2) {
    memcpy(&word, x + i, 8);
    h = (h ^ word) * 1099511628211u;
  }
  return h;
}""",
    ),
    gates=("faster",),
    timing=True,
)
