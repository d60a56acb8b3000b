"""How many compilers may run at once, and a way for one to have the machine to itself.

A compiler of a template-heavy source takes a gigabyte and more. Counting cores alone has locked up large machines and small
containers, so memory, the container's limits and the user's MAX_JOBS count too.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch_forge.settings import Settings

JOB_BYTES = 3 << 29
"""1.5 GiB: what one compiler may need."""
JOB_PIDS = 12
"""Processes of one build: worker, ninja, shell, nvcc and its stages, with room for threads."""
CGROUP = Path("/sys/fs/cgroup")
"""Inside a container this is its own group."""
MEMINFO = Path("/proc/meminfo")


def build_jobs(settings: Settings) -> int:
    """The most builds at once: cores this process may use, free memory and process limits; at most MAX_JOBS, at least 1."""
    bounds = [len(os.sched_getaffinity(0)), available_bytes() // JOB_BYTES]
    if settings.max_jobs > 0:
        bounds.append(settings.max_jobs)
    if (quota := _cpu_quota()) is not None:
        bounds.append(quota)
    if (pids := _pids_left()) is not None:
        bounds.append(pids // JOB_PIDS)
    return max(1, min(bounds))


def available_bytes() -> int:
    """Memory that can still be used, in bytes: the machine's, or what the container's limit leaves."""
    fields = dict(line.split(":", 1) for line in _read(MEMINFO).splitlines() if ":" in line)
    free = int(fields.get("MemAvailable", "0 kB").split()[0]) << 10
    bounds = [free] if free else []
    for limit, used in (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):
        most, current = _number(CGROUP / limit), _number(CGROUP / used)
        if most is not None and current is not None:
            bounds.append(max(0, most - current + _reclaimable()))
    return min(bounds, default=JOB_BYTES)


def _reclaimable() -> int:
    """File cache that a container's usage counts, but that goes when memory is wanted."""
    for line in (_read(CGROUP / "memory.stat") or _read(CGROUP / "memory" / "memory.stat")).splitlines():
        name, _, value = line.partition(" ")
        if name == "inactive_file" and value.isdigit():
            return int(value)
    return 0


def _cpu_quota() -> int | None:
    quota, _, period = _read(CGROUP / "cpu.max").strip().partition(" ")
    return max(1, int(quota) // int(period)) if quota.isdigit() and period.isdigit() else None


def _pids_left() -> int | None:
    most, current = _number(CGROUP / "pids.max"), _number(CGROUP / "pids.current")
    return None if most is None or current is None else max(0, most - current)


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


class Gate:
    """Many may pass together, or one alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._alone = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Pass with others; waits while one is alone."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until the others have left, keep new ones out."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            self._alone = True
            self._changed.wait_for(lambda: self._inside == 0)
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._changed.notify_all()
