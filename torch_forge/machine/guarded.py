"""Host memory that ends at a page nobody may touch: reading or writing past its end is a crash and not luck."""

from __future__ import annotations

import ctypes
import mmap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_PAGE = mmap.PAGESIZE
_PROT_NONE = 0


def guarded_bytes(nbytes: int) -> torch.Tensor:
    """A uint8 tensor on the CPU whose last byte is the last one before an unreadable page.

    The page is freed with the tensor. Raises OSError if the system refuses.
    """
    import torch

    length = max(1, -(-nbytes // _PAGE)) * _PAGE
    pages = mmap.mmap(-1, length + _PAGE)
    whole = torch.frombuffer(pages, dtype=torch.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    guard = ctypes.c_void_p(whole.data_ptr() + length)
    if libc.mprotect(guard, ctypes.c_size_t(_PAGE), _PROT_NONE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, "cannot protect a guard page")
    return whole[length - nbytes : length]
