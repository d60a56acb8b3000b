"""The file operations that stores are built on, and the test of whether a directory may be trusted.

Whoever can write to the cache can run code in the processes that read it, so a directory that other users
can write to is refused unless the user says that they are trusted. An existing directory is never chmod-ed.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Protocol

from torch_forge.errors import CacheError
from torch_forge.machine import files as machine_files

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Files(Protocol):
    """The operations that fail on a full, read-only or remote disk; tests inject these failures here."""

    def make_dir(self, path: Path, mode: int) -> None:
        """Create a directory with exactly this mode, missing parents with 0700; an existing one is left as it is."""

    def write(self, path: Path, data: bytes, mode: int) -> None:
        """Create a file with exactly this mode and flush it to the disk."""

    def publish(self, staging: Path, final: Path) -> bool:
        """Rename a directory; False, and ``staging`` is gone, if ``final`` was there already."""

    def remove_tree(self, path: Path) -> None:
        """Delete as much as possible; never raises."""


class LocalFiles:
    """``Files`` of the operating system."""

    def make_dir(self, path: Path, mode: int) -> None:
        machine_files.private_dir(path.parent)
        try:
            path.mkdir(mode=mode)
        except FileExistsError:
            machine_files.private_dir(path)
        else:
            path.chmod(mode)  # mkdir applies the umask

    def write(self, path: Path, data: bytes, mode: int) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, mode)
            file.write(data)
            file.flush()
            os.fsync(fd)

    def publish(self, staging: Path, final: Path) -> bool:
        return machine_files.replace_dir(staging, final)

    def remove_tree(self, path: Path) -> None:
        machine_files.remove_tree(path)


def check_root(root: Path, *, own: bool, trust_others: bool) -> None:
    """Refuse a directory in which somebody else could plant a library. One that is not there yet is fine.

    own: it must also belong to this user or to root. trust_others: the user trusts everyone who can write there.
    Raises CacheError.
    """
    try:
        status = root.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise CacheError(f"{root} cannot be used as a cache: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode):
        raise CacheError(f"{root} is not a directory")
    if trust_others:
        return
    if status.st_mode & OTHERS_WRITE:
        raise CacheError(
            f"other users can write to {root} (mode {stat.S_IMODE(status.st_mode):04o}) and could plant a kernel there",
            advice=f"Run `chmod go-w {root}`, choose another directory with TORCH_FORGE_CACHE_DIR, "
            "or say that you trust everyone who can write there (trust_others=True).",
        )
    if own and status.st_uid not in {os.geteuid(), 0}:
        raise CacheError(f"{root} belongs to another user (uid {status.st_uid})")


def directory_mode(root: Path, *, own: bool, trust_others: bool) -> int:
    """Permissions of a new directory below ``root``: 0700 in a private cache, those of the root in a shared one."""
    if own:
        return 0o700
    try:
        mode = stat.S_IMODE(root.stat().st_mode) & 0o777
    except OSError:
        return 0o700
    return mode if trust_others else mode & ~OTHERS_WRITE


def listed(directory: Path) -> list[str]:
    """Names in a directory, sorted; empty if it cannot be read."""
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []
