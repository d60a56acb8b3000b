"""Returns its input where a tensor of its own is due: whoever writes to the result writes to the input."""

from __future__ import annotations

import torch

from tests.zoo.trick import Trick


def reference(x):
    return x * 1.0


TRICK = Trick(
    name="py_input_returned",
    section="A19",
    reference=reference,
    sample=lambda: (torch.rand(64, 64, generator=torch.Generator().manual_seed(0)),),
    source=r"""
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return x
""",
    kind="py",
    gates=("result form",),
)
