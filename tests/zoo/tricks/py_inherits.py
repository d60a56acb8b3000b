"""Inherits from the reference and adds nothing."""

from __future__ import annotations

import torch

from tests.zoo.trick import Trick, floats


def reference(x):
    return torch.relu(x)


TRICK = Trick(
    name="py_inherits",
    section="A82",
    reference=reference,
    sample=lambda: (floats(64, 64),),
    source=r"""
from reference import Model


class ModelNew(Model):
    pass
""",
    kind="py",
    gates=(
        "source",
        "survives",
    ),
)
