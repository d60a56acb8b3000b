"""Landlock: from here on this thread, and all that it starts, opens only what lies under the given paths.

Each kernel knows some of the rights; what it does not know is not restricted, and the layer's tests say what that means.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

from torch_forge.machine.sandbox.syscalls import call

_VERSION = 1
_PATH_BENEATH = 1
_SYNC_THREADS, _SYNC_THREADS_ABI = 1 << 3, 8

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE = 1 << 4 | 1 << 5
_MAKE_DIR, _MAKE_REGULAR, _MAKE_SYMLINK = 1 << 7, 1 << 8, 1 << 12
_REFER, _TRUNCATE, IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15
_FOR_FILES = EXECUTE | WRITE_FILE | READ_FILE | _TRUNCATE | IOCTL_DEVICE
READ = READ_FILE | READ_DIR
WRITE = READ | WRITE_FILE | _REMOVE | _MAKE_DIR | _MAKE_REGULAR | _REFER | _TRUNCATE
BUILD = WRITE | EXECUTE | _MAKE_SYMLINK
"""For a scratch folder in which compilers work."""
DEVICE = READ_FILE | WRITE_FILE | IOCTL_DEVICE

_RIGHTS = {1: 1 << 13, 2: 1 << 14, 3: 1 << 15, 5: 1 << 16}
"""First ABI -> one beyond the highest right it knows."""
TCP_ABI, SCOPE_ABI = 4, 6


def abi() -> int:
    """The kernel's version of Landlock. Raises OSError if there is none."""
    return call("landlock_create_ruleset", None, 0, _VERSION)


def syncs_threads() -> bool:
    """Whether threads that exist already are restricted as well."""
    return abi() >= _SYNC_THREADS_ABI


def restrict_files(rules: Iterable[tuple[str, int]]) -> None:
    """Path -> what is allowed beneath it; a path that does not exist allows nothing. Raises OSError."""
    version = abi()
    handled = max(top for first, top in _RIGHTS.items() if first <= version) - 1
    ruleset = call("landlock_create_ruleset", struct.pack("QQQ", handled, 0, 0), 8, 0)
    try:
        for path, rights in rules:
            _allow(ruleset, path, rights & handled)
        _restrict(ruleset)
    finally:
        os.close(ruleset)


def restrict_tcp() -> None:
    """No binding and no connecting. Raises OSError, also where the kernel is too old to know."""
    if abi() < TCP_ABI:
        raise OSError(f"Landlock ABI {abi()}; TCP rules need {TCP_ABI} (Linux 6.7)")
    _restrict_beside_files(tcp=3)


def restrict_signals() -> None:
    """No signals to, and no abstract sockets of, processes outside. Raises OSError, also where the kernel is too old."""
    if abi() < SCOPE_ABI:
        raise OSError(f"Landlock ABI {abi()}; signal rules need {SCOPE_ABI} (Linux 6.12)")
    _restrict_beside_files(scopes=3)


def _restrict_beside_files(*, tcp: int = 0, scopes: int = 0) -> None:
    """A ruleset that is not about files still forbids moving them between folders, unless it says that it may be done."""
    attributes = struct.pack("QQQ", _REFER, tcp, scopes)
    ruleset = call("landlock_create_ruleset", attributes, 24 if scopes else 16, 0)
    try:
        _allow(ruleset, "/", _REFER)
        _restrict(ruleset)
    finally:
        os.close(ruleset)


def _restrict(ruleset: int) -> None:
    call("landlock_restrict_self", ruleset, _SYNC_THREADS if syncs_threads() else 0)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _FOR_FILES
        attributes = struct.pack("=Qi", rights, descriptor)
        call("landlock_add_rule", ruleset, _PATH_BENEATH, ctypes.create_string_buffer(attributes, len(attributes)), 0)
    finally:
        os.close(descriptor)
