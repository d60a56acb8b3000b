"""Computes one element itself, for show, and has torch compute all of them."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats


def reference(x, z):
    return x + z


TRICK = Trick(
    name="py_decoy",
    section="A81",
    reference=reference,
    sample=lambda: (floats(4096), floats(4096, seed=1)),
    source=r"""
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x, z):
        self.first = x.numpy()[0] + z.numpy()[0]
        return x + z
""",
    kind="py",
    gates=("own work",),
)
