"""Call ``forge_launch`` of a loaded kernel: the ctypes side of ``include/forge.h``.

The argument block is built once and used for many calls; only the output pointers change, since outputs are
allocated for each call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch_forge.records.tensors import DTYPES, TensorSpec

if TYPE_CHECKING:
    import torch

OK, INDEX_ERROR, BAD_CONFIG, UNSUPPORTED, CUDA_ERROR = 0, 1, 2, 3, 1000
"""What ``forge_launch`` returns; CUDA errors are ``CUDA_ERROR`` plus the cudaError_t."""
MEANINGS = {
    INDEX_ERROR: "an index is out of range",
    BAD_CONFIG: "it has no such config",
    UNSUPPORTED: "it does not serve these inputs",
}

_CODES = {name: code for code, name in enumerate(DTYPES)}


class ForgeTensor(ctypes.Structure):
    """``ForgeTensor`` of forge.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
    )


_SIGNATURE = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(ForgeTensor),
    ctypes.POINTER(ForgeTensor),
    ctypes.POINTER(ctypes.c_int64),
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_void_p,
)


class Launch:
    """One kernel on one set of inputs; call it with output tensors of the given specs, get the return code.

    ``address`` is that of ``forge_launch``; ``workspace`` and ``stream`` are addresses or 0.
    """

    def __init__(
        self,
        address: int,
        inputs: Sequence[tuple[TensorSpec, int]],
        outputs: Sequence[TensorSpec],
        dims: Sequence[int],
        *,
        config: int,
        threads: int,
        workspace: int = 0,
        stream: int = 0,
    ) -> None:
        self._kept: list[object] = []
        self._function = _SIGNATURE(address)
        self._outputs = (ForgeTensor * max(1, len(outputs)))(*(self._tensor(spec, 0) for spec in outputs))
        block = (ForgeTensor * max(1, len(inputs)))(*(self._tensor(spec, pointer) for spec, pointer in inputs))
        values = (ctypes.c_int64 * max(1, len(dims)))(*dims)
        self._arguments = (block, self._outputs, values, config, threads, workspace or None, stream or None)

    def __call__(self, outputs: Sequence[torch.Tensor]) -> int:
        """Run the kernel into ``outputs``; on CUDA it is only enqueued."""
        for slot, tensor in zip(self._outputs, outputs, strict=False):
            slot.data = tensor.data_ptr()
        return int(self._function(*self._arguments))

    def _tensor(self, spec: TensorSpec, pointer: int) -> ForgeTensor:
        n = len(spec.shape)
        sizes, strides = (ctypes.c_int64 * max(1, n))(*spec.shape), (ctypes.c_int64 * max(1, n))(*spec.stride)
        self._kept += [sizes, strides]
        return ForgeTensor(pointer or None, sizes, strides, n, _CODES[spec.dtype])


def meaning(code: int) -> str:
    """One line for a non-zero return code."""
    if code > CUDA_ERROR:
        return f"CUDA error {code - CUDA_ERROR}"
    return MEANINGS.get(code, f"return code {code}")
