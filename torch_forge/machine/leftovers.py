"""Folders that say in their names whose they are, so that what a killed process left is recognised and removed.

The host part of a name covers the PID namespace: a PID seen from another machine or container says nothing about whether
the process lives.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
import time
from pathlib import Path

from torch_forge.errors import WorkerError
from torch_forge.machine.files import remove_tree

REMOVAL_S = 10.0
"""How long a folder may resist because something that was killed still writes to it."""

ROOM = "Make room on the disk for temporary files, or set TMPDIR to a directory on a larger one."
ROOM_BYTES = 1 << 20
"""With less than this on the disk neither a compiler nor a worker can even say what went wrong."""

_NAME = re.compile(r"torch_forge-([0-9a-f]{8})-(\d+)-\w+")


def owned_folder(base: Path | None = None) -> Path:
    """A new private folder of this process in ``base``, by default the system's temporary directory. Raises OSError."""
    base = Path(tempfile.gettempdir()) if base is None else base
    return Path(tempfile.mkdtemp(prefix=f"torch_forge-{host()}-{os.getpid()}-", dir=base.absolute()))


def sweep(base: Path) -> None:
    """Remove the folders in ``base`` whose processes were killed; those of this user only."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(base):
            match = _NAME.fullmatch(entry.name)
            if (
                match
                and match[1] == host()
                and not alive(int(match[2]))
                and entry.stat(follow_symlinks=False).st_uid == os.getuid()
            ):
                remove_tree(Path(entry.path))


def remove_for_good(path: Path) -> None:
    """Remove a tree that processes on their way out may still write to."""
    deadline = time.monotonic() + REMOVAL_S
    remove_tree(path)
    while path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
        remove_tree(path)


def demand_room(folder: Path) -> None:
    """Where something has failed and its files are gone: raises WorkerError if the disk of ``folder`` is full even so."""
    if shutil.disk_usage(folder).free < ROOM_BYTES:
        raise WorkerError("the disk for temporary files is full: No space left on device", advice=ROOM)


def alive(pid: int) -> bool:
    """Whether there is such a process, in this PID namespace."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def host() -> str:
    """Eight hex digits for this machine and PID namespace."""
    namespace = ""
    with contextlib.suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").readlink())
    return hashlib.sha256(f"{os.uname().nodename}\0{namespace}".encode()).hexdigest()[:8]
