"""What became of a task, as a value, and how it is told from what its process left."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_forge.errors import SandboxError
from torch_forge.machine.watched import Ended
from torch_forge.machine.worker_child import LOG_NAME
from torch_forge.machine.worker_client import read_log


@dataclass(frozen=True)
class TaskDone:
    """The task returned."""

    value: Any
    """Plain JSON."""
    scratch: Path
    """Its directory. One that the pool made stays until the pool is closed, unless the caller removes it earlier."""
    seconds: float
    log: str
    """What it printed."""


@dataclass(frozen=True)
class TaskDied:
    """The task raised, crashed, or exited without a result."""

    signal: int
    """0 if it ended by itself."""
    exit_status: int
    """``-signal`` if it was killed."""
    log: str
    seconds: float
    exception: str
    """``Type: message`` if it raised, else empty."""


@dataclass(frozen=True)
class TaskExpired:
    """No result within the limit; its process group was killed."""

    limit_s: float
    log: str


Outcome = TaskDone | TaskDied | TaskExpired


def outcome_of(ended: Ended | None, scratch: Path, limit_s: float, *, orphaned: str) -> Outcome:
    """Put the end of a process into words. orphaned: what to say where nobody was left to tell how it ended.

    Raises SandboxError if the task's sandbox failed, which says nothing about the task.
    """
    log = read_log(scratch / LOG_NAME)
    if ended is not None and ended.locked is False:
        raise SandboxError(f"a task's sandbox could not be put on:\n{log}".rstrip())
    if ended is None:
        killed = int(signal.SIGKILL)
        return TaskDied(killed, -killed, log, 0.0, orphaned)
    if ended.expired:
        return TaskExpired(limit_s, log)
    if ended.code == 0 and "result" in ended.message:
        return TaskDone(ended.message["result"], scratch, ended.seconds, log)
    exception = str(ended.message.get("exception", ""))
    return TaskDied(max(0, -ended.code), ended.code, log, ended.seconds, exception)
