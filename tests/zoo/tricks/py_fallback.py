"""Tries a kernel that never works, and then calls torch."""

from __future__ import annotations

import torch

from tests.zoo.trick import Trick, floats


def reference(x):
    return torch.softmax(x, -1)


TRICK = Trick(
    name="py_fallback",
    section="A79",
    reference=reference,
    sample=lambda: (floats(8, 128),),
    source=r"""
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        try:
            return self.fast(x)
        except RuntimeError:
            return torch.softmax(x, -1)

    def fast(self, x):
        raise RuntimeError("this device is not supported yet")
""",
    kind="py",
    gates=(
        "source",
        "own work",
    ),
)
