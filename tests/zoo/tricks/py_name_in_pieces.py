"""Calls torch by a name that stands nowhere in its source."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats


def reference(x, w):
    return x @ w


TRICK = Trick(
    name="py_name_in_pieces",
    section="A101",
    reference=reference,
    sample=lambda: (floats(64, 64), floats(64, 64, seed=1)),
    source=r"""
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x, w):
        return getattr(torch, "mat" + "mul")(x, w)
""",
    kind="py",
    gates=(
        "source",
        "own work",
    ),
)
