"""Computes in place, past torch's count of versions, and returns a copy."""

from __future__ import annotations

import torch

from tests.zoo.trick import Trick, floats


def reference(x):
    return torch.relu(x)


TRICK = Trick(
    name="py_mutates_input",
    section="A42",
    reference=reference,
    sample=lambda: (floats(64, 64),),
    source=r"""
import numpy
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        values = x.numpy()
        values[values < 0] = 0
        return torch.from_numpy(values.copy())
""",
    kind="py",
    gates=("keeps inputs",),
)
