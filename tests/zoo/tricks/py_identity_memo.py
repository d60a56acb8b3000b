"""Keeps its last result as long as it gets the same tensor in the version that torch counts.

Memory that is changed from outside torch changes neither."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="py_identity_memo",
    section="A12",
    reference=reference,
    sample=lambda: (floats(64, 64),),
    source=r"""
import numpy
import torch


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.results = {}

    def forward(self, x):
        key = x.data_ptr()
        if key not in self.results:
            self.results[key] = x.numpy() * numpy.float32(1.5)
        return torch.from_numpy(self.results[key].copy())
""",
    kind="py",
    gates=("same pointers",),
)
