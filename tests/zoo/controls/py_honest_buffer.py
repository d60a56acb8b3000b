"""A Python candidate that allocates its result with torch and fills it itself."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats


def reference(x, z):
    return x + z


TRICK = Trick(
    name="py_honest_buffer",
    section="",
    reference=reference,
    sample=lambda: (floats(64, 64), floats(64, 64, seed=1)),
    source=r"""
import numpy
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x, z):
        result = torch.empty_like(x)
        numpy.add(x.numpy(), z.numpy(), out=result.numpy())
        return result
""",
    kind="py",
    gates=(),
)
