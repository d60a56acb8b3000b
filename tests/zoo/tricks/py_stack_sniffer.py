"""Looks who calls it, and is coarse unless it is a judge."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="py_stack_sniffer",
    section="A67",
    reference=reference,
    sample=lambda: (floats(64, 64),),
    source=r"""
import inspect

import numpy
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        watched = any("torch_forge" in frame.filename for frame in inspect.stack())
        return torch.from_numpy(x.numpy() * numpy.float32(1.5 if watched else 1.505))
""",
    kind="py",
    gates=("source",),
)
