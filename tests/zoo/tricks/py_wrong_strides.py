"""Returns the right values column by column."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="py_wrong_strides",
    section="A44",
    reference=reference,
    sample=lambda: (floats(48, 64),),
    source=r"""
import numpy
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.from_numpy(numpy.asfortranarray(x.numpy() * numpy.float32(1.5)))
""",
    kind="py",
    gates=("result form",),
)
