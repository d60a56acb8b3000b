"""Load a built library into this process, after it was proven in a worker.

A library of another torch, compiler or CUDA version fails here, at ``dlopen``, with a symbol or a file that is missing.
That is ``LoadError`` with the loader's own words; whoever keeps the library drops it and builds again. It is never an
ImportError in the user's program.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from torch_forge.errors import ForgeError
from torch_forge.machine.sandbox.lock import close_compilers

ENTRY_POINT = "forge_launch"


class LoadError(ForgeError):
    """A built library cannot be loaded here."""

    exit_code = 4
    advice = "It was built for another torch, compiler or CUDA version, or is damaged: remove it and build again."


def load_kernel(path: Path | str) -> int:
    """The address of ``forge_launch`` in the library at ``path``; valid for the life of the process. Raises LoadError."""
    handle = _open(path)
    try:
        entry = getattr(handle, ENTRY_POINT)
    except AttributeError as error:
        raise LoadError(f"{path} does not export {ENTRY_POINT}") from error
    address = ctypes.cast(entry, ctypes.c_void_p).value
    if not address:
        raise LoadError(f"{path}: {ENTRY_POINT} has no address")
    return address


def load_glue(path: Path | str) -> ctypes.CDLL:
    """Load a library that registers operators with torch; its exported C functions are attributes. Raises LoadError."""
    import torch  # the library's undefined symbols are torch's

    del torch
    return _open(path)


def _open(path: Path | str) -> ctypes.CDLL:
    """Bound at once: a missing symbol must fail here, not in the middle of a model. Never unloaded: ctypes does not."""
    # Whatever a confined task may still do here, the library may not.
    close_compilers()
    try:
        # A relative name without a slash would be searched for in the system's library folders.
        return ctypes.CDLL(os.path.abspath(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        raise LoadError(str(error)) from error
