"""Returns float64 for float32."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="py_wrong_type",
    section="A45",
    reference=reference,
    sample=lambda: (floats(64, 64),),
    source=r"""
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.from_numpy(x.numpy().astype("float64") * 1.5)
""",
    kind="py",
    gates=("result form",),
)
