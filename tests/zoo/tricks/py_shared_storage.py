"""Cuts each result out of one large piece of memory of its own, which lives as long as any of them."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="py_shared_storage",
    section="A20",
    reference=reference,
    sample=lambda: (floats(64, 64),),
    source=r"""
import numpy
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        whole = torch.empty(1 << 16)
        result = whole[64 : 64 + x.numel()].view(x.shape)
        numpy.multiply(x.numpy(), numpy.float32(1.5), out=result.numpy())
        return result
""",
    kind="py",
    gates=("result form",),
)
