"""Takes torch's threads away, so that eager is slower than it was."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="py_fewer_threads",
    section="A74",
    reference=reference,
    sample=lambda: (floats(64, 64),),
    source=r"""
import numpy
import torch

torch.set_num_threads(max(1, torch.get_num_threads() - 1) if torch.get_num_threads() > 1 else 2)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.from_numpy(x.numpy() * numpy.float32(1.5))
""",
    kind="py",
    gates=(
        "source",
        "leaves no trace",
    ),
)
