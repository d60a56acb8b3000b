"""Files that are whole or absent: every write is a rename, and a race or a network filesystem costs a miss, not a crash.

``os.replace`` within one directory is atomic on every filesystem we may meet; what comes after it (cleaning up, reading
back) may fail with EBUSY, ESTALE or ENOENT on a network filesystem although the rename succeeded, so those are tolerated.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

TRANSIENT = frozenset({errno.EBUSY, errno.ESTALE, errno.ENOENT})
"""What NFS and Lustre answer when another client was faster, or when they have not caught up."""

OCCUPIED = frozenset({errno.EEXIST, errno.ENOTEMPTY})
"""What renaming a directory over one that has entries answers."""


def atomic_write(path: Path, data: bytes | str) -> None:
    """Replace ``path`` by a file with exactly this content; readers see the old or the new one. Raises OSError."""
    content = data.encode() if isinstance(data, str) else data
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def private_dir(path: Path) -> Path:
    """Make ``path`` with mode 0700, parents too where missing; a directory that exists keeps its mode."""
    for missing in reversed([p for p in (path, *path.parents) if not p.exists()]):
        with contextlib.suppress(FileExistsError):
            missing.mkdir(mode=0o700)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    return path


def sha256_file(path: Path) -> str:
    """SHA-256 of the content as 64 hex digits."""
    result = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            result.update(block)
    return result.hexdigest()


def read_untrusted(path: Path, nbytes: int) -> bytearray | None:
    """The content of a file that a candidate's process left, None unless it is a plain file of exactly ``nbytes``."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        if os.fstat(descriptor).st_size != nbytes:
            return None
        content = bytearray(nbytes)
        return content if file.readinto(content) == nbytes else None


def replace_dir(staging: Path, final: Path) -> bool:
    """Publish ``staging`` as ``final``; whether it was ours that was published.

    If ``final`` exists with content it stays (the first writer wins) and ``staging`` is removed. Raises OSError
    if neither is there afterwards.
    """
    try:
        os.rename(staging, final)
        return True
    except OSError as error:
        if error.errno in TRANSIENT and final.is_dir() and not staging.exists():
            return True  # renamed, and the answer was lost on the way
        if error.errno not in OCCUPIED | TRANSIENT or not final.is_dir():
            raise
    remove_tree(staging)
    return False


def remove_tree(path: Path) -> None:
    """Remove a directory as far as possible; what is busy stays."""
    shutil.rmtree(path, ignore_errors=True)
