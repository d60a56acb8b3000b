"""Locks that die with their holder: the kernel releases them, so a killed run never blocks the next one.

Torch's older build lock is a file whose mere existence blocks; one SIGKILL and every later build hangs. These are
``flock`` locks, always with a limit, and a wait that ends says which file to look at.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch_forge.errors import WorkerError
from torch_forge.machine.files import private_dir
from torch_forge.records.device import DeviceInfo

LANE_TIMEOUT_S = 600.0
"""Longer than any one timing run; another tuner on the same device makes us wait this long at most."""


class LockError(WorkerError):
    """A lock could not be taken."""

    advice = (
        "Another process may hold it; `fuser <file>` shows which. The file itself may stay: only a live process locks it."
    )


@contextmanager
def file_lock(path: Path, *, timeout_s: float) -> Iterator[None]:
    """Hold ``path`` exclusively, against threads and processes.

    Raises LockError, naming the file, after ``timeout_s`` seconds or where the filesystem cannot lock.
    """
    import filelock

    lock = filelock.FileLock(path, timeout=timeout_s)
    try:
        lock.acquire()
    except filelock.Timeout as error:
        raise LockError(f"waited {timeout_s:g} s for the lock {path}") from error
    except (OSError, NotImplementedError) as error:
        raise LockError(
            f"cannot lock {path}: {error}", advice="Choose a directory on a filesystem with file locks."
        ) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def device_lane(device: DeviceInfo, *, timeout_s: float = LANE_TIMEOUT_S) -> Iterator[None]:
    """Hold the device's only timing lane: while one process of this user measures, the others wait. Raises LockError."""
    with file_lock(lane_dir() / f"{_lane_name(device)}.lock", timeout_s=timeout_s):
        yield


def lane_dir() -> Path:
    """Where the lanes' lock files are: per user and host, never on a shared filesystem."""
    path = private_dir(Path(tempfile.gettempdir()) / f"torch_forge-lanes-{os.getuid()}")
    if path.stat().st_uid != os.getuid():
        raise LockError(f"{path} belongs to another user", advice="Set TMPDIR to a directory of your own.")
    return path


def _lane_name(device: DeviceInfo) -> str:
    """The physical device: an ordinal means another GPU under another CUDA_VISIBLE_DEVICES, its UUID does not."""
    if device.type != "cuda":
        return device.type
    import torch

    uuid = getattr(torch.cuda.get_device_properties(device.index), "uuid", None)
    return re.sub(r"[^\w.-]", "_", f"cuda-{uuid or device.index}")
