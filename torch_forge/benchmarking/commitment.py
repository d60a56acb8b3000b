"""What a worker says of its results at once, so that it cannot make them up later; the judge finds the same in the bytes.

A few elements, in the very request that is timed, show that a result was there when its time was taken. A digest of all
of them fixes the rest before the worker learns which results will be looked at.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

SAMPLED = 64
"""Elements of each output."""
_RAW_BYTES = 1 << 16
"""Up to here a digest is of the bytes themselves; beyond, of their sums along two directions, which a GPU computes fast."""
_LANES = 1024


def sampled(outputs: Sequence[torch.Tensor], place: int) -> str:
    """Elements of every output, evenly spread from a beginning that ``place`` decides, as hex digits."""
    return b"".join(_few(o, place) for o in outputs).hex()


def digest(outputs: Sequence[torch.Tensor]) -> str:
    """32 hex digits that change with any byte of any output; the same on every device."""
    found = hashlib.blake2b(digest_size=16)
    for output in outputs:
        for part in _parts(as_bytes(output)):
            found.update(part.cpu().numpy().tobytes())
    return found.hexdigest()


def as_bytes(output: torch.Tensor) -> torch.Tensor:
    """Its elements in row-major order as uint8."""
    return output.reshape(-1).view(torch.uint8)


def _few(output: torch.Tensor, place: int) -> bytes:
    flat = output.reshape(-1)
    step = max(1, flat.numel() // SAMPLED)
    return as_bytes(flat[place % step :: step].contiguous()).cpu().numpy().tobytes()


def _parts(flat: torch.Tensor) -> list[torch.Tensor]:
    if flat.numel() <= _RAW_BYTES:
        return [flat]
    if flat.storage_offset() % 8:
        flat = flat.clone()
    whole = flat.numel() // (8 * _LANES) * (8 * _LANES)
    words = flat[:whole].view(torch.int64).view(-1, _LANES)
    return [words.sum(0), words.sum(1), flat[whole:]]
