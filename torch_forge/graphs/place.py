"""Tensors whose surroundings are known: what a kernel reads or writes outside its tensor shows.

A tensor is placed in a region of bytes, with a zone before and after it and in the gaps of its strides, all of one
byte value. Around inputs the byte makes a NaN of every float type, so that a read outside spoils the
result; around and in outputs it is looked for afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torch_forge.machine.guarded import guarded_bytes
from torch_forge.records.tensors import TensorSpec

ZONE_BYTES = 512
"""On either side; also the alignment of the first byte after the zone, what the CUDA allocator gives."""
NAN_BYTE = 0xFF
"""Repeated, a NaN in float64, float32, float16 and bfloat16."""
PLAIN_BYTE = 0x5B
"""Repeated, an ordinary number in every type (6e16 in float32, 235 in float16)."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor and the bytes it lies in."""

    tensor: torch.Tensor
    region: torch.Tensor
    """uint8, one dimension: zone, tensor with its gaps, zone."""


def span(spec: TensorSpec) -> int:
    """Elements from the first to the last that the tensor reaches."""
    return 0 if spec.numel == 0 else 1 + sum((n - 1) * s for n, s in zip(spec.shape, spec.stride, strict=True))


def region_bytes(spec: TensorSpec, offset_elements: int = 0) -> int:
    """Length of the region of ``place``."""
    return 2 * ZONE_BYTES + (offset_elements + span(spec)) * spec.itemsize


def place(spec: TensorSpec, *, device: torch.device, byte: int, offset_elements: int = 0, guarded: bool = False) -> Placed:
    """A tensor of this spec, every byte of its region ``byte``.

    Its data pointer is a multiple of 512 bytes plus ``offset_elements`` elements. guarded: on the CPU the region is
    followed, after less than 512 bytes, by a page that nobody may touch.
    """
    length = region_bytes(spec, offset_elements)
    if guarded and device.type == "cpu":
        raw = guarded_bytes(-(-length // ZONE_BYTES) * ZONE_BYTES)  # pages are multiples of the zone, so this is aligned
    else:
        raw = torch.empty(length + ZONE_BYTES, dtype=torch.uint8, device=device)
    shift = -raw.data_ptr() % ZONE_BYTES
    region = raw[shift : shift + length].fill_(byte)
    return Placed(tensor_in(region, spec, offset_elements), region)


def tensor_in(region: torch.Tensor, spec: TensorSpec, offset_elements: int = 0) -> torch.Tensor:
    """The tensor inside a region that ``place`` made, or a copy of one."""
    start = ZONE_BYTES + offset_elements * spec.itemsize
    flat = region[start : start + span(spec) * spec.itemsize].view(getattr(torch, spec.dtype))
    return flat.as_strided(spec.shape, spec.stride, flat.storage_offset())


def surroundings_kept(region: torch.Tensor, spec: TensorSpec, byte: int) -> bool:
    """Whether every byte of an output's region outside its elements still is ``byte``."""
    if spec.is_contiguous:
        end = ZONE_BYTES + span(spec) * spec.itemsize
        return bool((region[:ZONE_BYTES] == byte).all() and (region[end:] == byte).all())
    blank = region.clone()
    tensor_in(blank, spec).view(_BITS[spec.itemsize]).fill_(_repeated(byte, spec.itemsize))
    return bool((blank == byte).all())


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _repeated(byte: int, nbytes: int) -> int:
    return int.from_bytes(bytes([byte]) * nbytes, "little", signed=nbytes > 1)
