"""Takes the variance as the mean of the squares minus the square of the mean, which cancels where the mean is large."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x.var(-1, unbiased=False)


TRICK = Trick(
    name="one_pass_variance",
    section="A25",
    reference=reference,
    sample=lambda: (floats(16, 256),),
    source=kernel(r"""
  const int64_t cols = in[0].sizes[1];
  for (int64_t r = 0; r < in[0].sizes[0]; ++r) {
    float sum = 0, squares = 0;
    for (int64_t c = 0; c < cols; ++c) {
      sum += x[r * cols + c];
      squares += x[r * cols + c] * x[r * cols + c];
    }
    y[r] = squares / cols - sum / cols * (sum / cols);
  }"""),
    gates=(
        "is right",
        "misaligned",
        "same pointers",
        "patterns",
    ),
)
