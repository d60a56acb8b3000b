"""Replaces the interpreter's clocks by ones that leave its own calls out."""

from __future__ import annotations

import torch

from tests.zoo.trick import Trick, floats


def reference(x):
    return torch.sin(x)


TRICK = Trick(
    name="py_patched_clock",
    section="A62",
    reference=reference,
    sample=lambda: (floats(1 << 16),),
    source=r"""
import time

import numpy
import torch

honest = time.perf_counter_ns
stolen_ns = 0
time.perf_counter_ns = time.monotonic_ns = lambda: honest() - stolen_ns
time.perf_counter = time.monotonic = lambda: (honest() - stolen_ns) * 1e-9


class ModelNew(torch.nn.Module):
    def forward(self, x):
        global stolen_ns
        begin = honest()
        result = torch.from_numpy(numpy.sin(x.numpy().astype(numpy.float64)).astype(numpy.float32))
        stolen_ns += (honest() - begin) * 98 // 100
        return result
""",
    kind="py",
    gates=(
        "source",
        "faster",
    ),
    timing=True,
)
