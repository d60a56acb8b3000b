"""Where an entry is written before it is visible, and how leftovers of a killed process are recognised.

A staging directory lies in the cache's own file system, so that one rename publishes it. Its name says who made it:
``<host>-<pid>-<nanoseconds>-<random>``. The host part covers the PID namespace: a PID seen from another machine or
container says nothing about whether the process lives.
"""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path

from torch_forge.caching.disk import listed
from torch_forge.machine.leftovers import alive, host

STAGING = "staging"
"""Folder of the cache root."""
ABANDONED_AFTER_S = 3600.0
"""No put of another host takes this long; what is older was left by a process that died."""


def staging_path(root: Path) -> Path:
    """A name for a new staging directory, unique over processes and machines."""
    return root / STAGING / f"{host()}-{os.getpid()}-{time.time_ns()}-{secrets.token_hex(4)}"


def leftovers(root: Path, *, now_s: float | None = None) -> list[Path]:
    """Staging directories that nobody will finish: of a dead process of this host, or another host's and older than an hour.

    On this host no clock is asked: one that is set forward must not make a running put look abandoned.
    """
    now_s = time.time() if now_s is None else now_s
    return [root / STAGING / name for name in listed(root / STAGING) if _is_abandoned(name, now_s)]


def _is_abandoned(name: str, now_s: float) -> bool:
    parts = name.split("-")
    if len(parts) != 4 or not parts[1].isdigit() or not parts[2].isdigit():
        return True
    if parts[0] == host():
        return not alive(int(parts[1]))
    return now_s - int(parts[2]) / 1e9 > ABANDONED_AFTER_S
