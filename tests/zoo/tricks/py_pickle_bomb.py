"""Returns a result that acts when it is unpickled, in the process of whoever receives it."""

from __future__ import annotations

from tests.zoo.scenes import leaves_mark
from tests.zoo.trick import Trick, floats


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="py_pickle_bomb",
    section="A96",
    reference=reference,
    sample=lambda: (floats(16),),
    source=r"""
import numpy
import torch


class Result(torch.Tensor):
    def __reduce_ex__(self, protocol):
        return eval, ("open('@DIR@/mark', 'w').close() or __import__('torch').tensor(%r)" % self.tolist(),)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.Tensor._make_subclass(Result, torch.from_numpy(x.numpy() * numpy.float32(1.5)))
""",
    kind="py",
    gates=(
        "source",
        "result form",
    ),
    harmless="the judge unpickles nothing",
    scene=leaves_mark,
)
