"""Element types and tensor descriptions, without torch: what a record may say of a tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class DTypeInfo:
    """What stages need to know of an element type."""

    name: str
    """torch's own name without the ``torch.`` prefix."""
    nbytes: int
    """Bytes of one element."""
    kind: str
    """``float``, ``int`` or ``bool``."""
    unit_roundoff: float
    """Half a unit in the last place of 1.0; 0 for exact types."""


DTYPES: Mapping[str, DTypeInfo] = MappingProxyType(
    {
        d.name: d
        for d in (
            DTypeInfo("float64", 8, "float", 2.0**-53),
            DTypeInfo("float32", 4, "float", 2.0**-24),
            DTypeInfo("float16", 2, "float", 2.0**-11),
            DTypeInfo("bfloat16", 2, "float", 2.0**-8),
            DTypeInfo("int64", 8, "int", 0.0),
            DTypeInfo("int32", 4, "int", 0.0),
            DTypeInfo("int16", 2, "int", 0.0),
            DTypeInfo("int8", 1, "int", 0.0),
            DTypeInfo("uint8", 1, "int", 0.0),
            DTypeInfo("bool", 1, "bool", 0.0),
        )
    }
)
"""The element types that kernels may read and write; anything else stays eager."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape, strides and element type of one strided tensor; not its device, not its data."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    """In elements, as ``torch.Tensor.stride()``."""
    dtype: str
    """A key of ``DTYPES``."""

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return DTYPES[self.dtype].nbytes

    @property
    def unique_bytes(self) -> int:
        """Bytes of the distinct elements, a broadcast (stride 0) dimension counted once."""
        return self.itemsize * math.prod(n for n, s in zip(self.shape, self.stride, strict=True) if s != 0 or n == 0)

    @property
    def is_contiguous(self) -> bool:
        return self.numel == 0 or all(
            n == 1 or s == expected
            for n, s, expected in zip(self.shape, self.stride, contiguous_stride(self.shape), strict=True)
        )


def contiguous_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides in elements; as in torch, an empty dimension counts as one element."""
    strides: list[int] = []
    step = 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def contiguous(shape: tuple[int, ...], dtype: str) -> TensorSpec:
    """A row-major tensor of this shape and element type."""
    return TensorSpec(shape, contiguous_stride(shape), dtype)
