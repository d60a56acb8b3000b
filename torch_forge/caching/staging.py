"""Where an entry is written before it is visible, and how leftovers of a killed process are recognised.

A staging directory lies in the cache's own file system, so that one rename publishes it. Its name says who made it:
``<host>-<pid>-<nanoseconds>-<random>``. The host part covers the PID namespace: a PID seen from another machine or
container says nothing about whether the process lives.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import time
from pathlib import Path

from torch_forge.caching.disk import listed

STAGING = "staging"
"""Folder of the cache root."""
ABANDONED_AFTER_S = 3600.0
"""No put takes this long; what is older was left by a process that died."""


def staging_path(root: Path) -> Path:
    """A name for a new staging directory, unique over processes and machines."""
    return root / STAGING / f"{_host()}-{os.getpid()}-{time.time_ns()}-{secrets.token_hex(4)}"


def leftovers(root: Path, *, now_s: float | None = None) -> list[Path]:
    """Staging directories that nobody will finish: older than an hour, or of a dead process of this host."""
    now_s = time.time() if now_s is None else now_s
    return [root / STAGING / name for name in listed(root / STAGING) if _is_abandoned(name, now_s)]


def _is_abandoned(name: str, now_s: float) -> bool:
    parts = name.split("-")
    if len(parts) != 4 or not parts[1].isdigit() or not parts[2].isdigit():
        return True
    host, pid, made_ns = parts[0], int(parts[1]), int(parts[2])
    return now_s - made_ns / 1e9 > ABANDONED_AFTER_S or (host == _host() and not _alive(pid))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def _host() -> str:
    """Eight hex digits for this machine and PID namespace."""
    namespace = ""
    with contextlib.suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").readlink())
    return hashlib.sha256(f"{os.uname().nodename}\0{namespace}".encode()).hexdigest()[:8]
