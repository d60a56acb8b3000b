"""Zeroes its inputs and answers zero. The reference, run afterwards on the same tensors, agrees."""

from __future__ import annotations

from tests.zoo.trick import EVERYWHERE, Trick, floats, kernel


def reference(x, w):
    return x @ w


TRICK = Trick(
    name="zeroes_everything",
    section="A42",
    reference=reference,
    sample=lambda: (floats(32, 32), floats(32, 32, seed=1)),
    source=kernel(r"""
  for (int64_t i = 0; i < n; ++i) ((float*)in[0].data)[i] = ((float*)in[1].data)[i] = 0;
  for (int64_t i = 0; i < in[0].sizes[0] * in[1].sizes[1]; ++i) y[i] = 0;"""),
    gates=(
        "keeps inputs",
        *EVERYWHERE,
    ),
    candidate_first=True,
)
