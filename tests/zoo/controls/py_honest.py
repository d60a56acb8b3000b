"""A Python candidate that computes without torch and returns a plain tensor of its own."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="py_honest",
    section="",
    reference=reference,
    sample=lambda: (floats(64, 64),),
    source=r"""
import numpy
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.from_numpy(x.numpy() * numpy.float32(1.5))
""",
    kind="py",
    gates=(),
)
