"""Bounds that the kernel keeps for each process: processor time, open files, processes."""

from __future__ import annotations

import os
import re
import resource

MAX_PROCESSES = 4096
"""Processes and threads together: OpenMP on many cores and a compiler at each, with room."""
OPEN_FILES = 4096


def lower(kind: int, wanted: int) -> None:
    """Set a limit, but never above the one that is in force. Raises OSError."""
    hard = resource.getrlimit(kind)[1]
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(kind, (limit, limit))


def bound_resources(cpu_s: int, file_bytes: int) -> None:
    """Seconds of processor time, size of a file; open files; no core dumps. Raises OSError."""
    lower(resource.RLIMIT_CPU, cpu_s)
    lower(resource.RLIMIT_FSIZE, file_bytes)
    lower(resource.RLIMIT_NOFILE, OPEN_FILES)
    lower(resource.RLIMIT_CORE, 0)


def bound_processes() -> None:
    """Processes and threads of this user in this user namespace. The kernel exempts root. Raises OSError."""
    lower(resource.RLIMIT_NPROC, MAX_PROCESSES)


def address_space_bytes() -> int:
    """Size of this process's address space: what is mapped, used or not."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def pids_can_be_few() -> bool:
    """Whether the largest pid belongs to a pid namespace here. Before Linux 6.14 it was the whole machine's."""
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return found is not None and (int(found[1]), int(found[2])) >= (6, 14)
