"""Calls the matrix product of a library that torch brings along, by its C name."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats


def reference(x, w):
    return x @ w


TRICK = Trick(
    name="py_library_inside",
    section="A80",
    reference=reference,
    sample=lambda: (floats(64, 64), floats(64, 64, seed=1)),
    source=r"""
import ctypes
import os

import torch

library = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so"))


class ModelNew(torch.nn.Module):
    def forward(self, x, w):
        result = torch.empty(x.shape[0], w.shape[1])
        cols, rows, inner = (ctypes.byref(ctypes.c_int(k)) for k in (w.shape[1], x.shape[0], x.shape[1]))
        one, zero = ctypes.byref(ctypes.c_float(1)), ctypes.byref(ctypes.c_float(0))
        address = [ctypes.c_void_p(t.data_ptr()) for t in (w, x, result)]
        library.sgemm_(
            b"N", b"N", cols, rows, inner, one, address[0], cols, address[1], inner, zero, address[2], cols
        )
        return result
""",
    kind="py",
    gates=("source",),
)
