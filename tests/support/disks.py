"""Disks with faults: the file operations of the cache, failing where a test says so."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from torch_forge.caching.disk import LocalFiles


def failure(code: int, path: Path) -> OSError:
    return OSError(code, os.strerror(code), str(path))


class UnflushedDisk(LocalFiles):
    """Does not wait for the disk, for tests that make many entries."""

    def write(self, path: Path, data: bytes, mode: int) -> None:
        path.write_bytes(data)


class FullDisk(LocalFiles):
    """Room for ``room_bytes`` more bytes: a write beyond leaves a part of the file and fails."""

    def __init__(self, room_bytes: int) -> None:
        self.room_bytes = room_bytes

    def write(self, path: Path, data: bytes, mode: int) -> None:
        fits = data[: self.room_bytes]
        self.room_bytes -= len(fits)
        super().write(path, fits, mode)
        if fits != data:
            raise failure(errno.ENOSPC, path)


class ReadOnlyDisk(LocalFiles):
    """Refuses every change with the same answer."""

    def __init__(self, code: int = errno.EROFS) -> None:
        self.code = code
        self.attempts = 0

    def make_dir(self, path: Path, mode: int) -> None:
        self.attempts += 1
        raise failure(self.code, path)


class RemoteDisk(LocalFiles):
    """Answers the first ``times`` publications with an error, having done them or not."""

    def __init__(self, code: int, *, done: bool, times: int = 1) -> None:
        self.code = code
        self.done = done
        self.times = times

    def publish(self, staging: Path, final: Path) -> bool:
        if self.times == 0:
            return super().publish(staging, final)
        self.times -= 1
        if self.done:
            super().publish(staging, final)
        raise failure(self.code, final)
