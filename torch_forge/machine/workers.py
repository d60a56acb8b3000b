"""Run a task in a process that may die, from a process that must not.

``WorkerPool`` keeps one parent process (``worker_main.py``) that has imported torch and forks a child per task. The child
may crash, hang, exit, print or scribble; the caller gets a value that says so. Nothing but JSON comes back, over a socket of
this task alone, and whether the child really ended, and how, is told by the parent, which never listens to it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from torch_forge.errors import WorkerError
from torch_forge.machine.files import private_dir, remove_tree
from torch_forge.machine.worker_client import Ended, ParentProcess, decode, read_log, supervise
from torch_forge.machine.worker_main import LOG_NAME


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


class WorkerPool:
    """Killable workers. Thread-safe: as many tasks run at once as threads call ``run``. Starts nothing before the first."""

    def __init__(
        self, *, preload: Sequence[str] = (), scratch_root: Path | None = None, python_path: Sequence[str] = ()
    ) -> None:
        """
        preload: modules that the parent imports after torch; they must run no torch operation.
        scratch_root: where scratch directories are made; default the system's temporary directory.
        python_path: folders to put first on the workers' module path.
        """
        self._preload = tuple(preload)
        self._scratch_root = scratch_root
        self._python_path = tuple(python_path)
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._root: Path | None = None
        self._parent: ParentProcess | None = None

    def __enter__(self) -> WorkerPool:  # noqa: PYI034 -- typing.Self is younger than Python 3.10
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def start(self) -> None:
        """Begin to start the parent process without waiting for it; ``run`` does both."""
        self._after_fork()
        with self._lock:
            self._running_parent()

    def close(self) -> None:
        """Kill what runs, end the parent process, remove the scratch directories. Later, ``run`` raises WorkerError."""
        self._closed = True
        if self._owner != os.getpid():
            return
        with self._lock:
            if self._parent is not None:
                self._parent.stop()
                self._parent = None
            if self._root is not None:
                remove_tree(self._root)

    def run(
        self,
        task: str,
        payload: Any,
        *,
        timeout_s: float,
        env: Mapping[str, str | None] | None = None,
        scratch: Path | None = None,
        memory_bytes: int | None = None,
    ) -> Outcome:
        """Call ``task`` (``package.module:function``) as ``function(payload, scratch)`` in a fresh child process.

        payload and result are plain JSON. The child works in ``scratch``, prints into a log there, and sees only the
        variables that ``PASSED_ON`` names plus ``env`` (None unsets). memory_bytes limits its address space; not for CUDA,
        which reserves far more than it uses. Raises WorkerError if no worker can be started or the pool is closed.
        """
        self._after_fork()
        own_scratch = scratch is None
        directory = self._new_scratch() if scratch is None else private_dir(scratch).absolute()
        request = {
            "task": task,
            "payload": payload,
            "scratch": str(directory),
            "env": dict(env or {}),
            "memory_bytes": memory_bytes,
            "threads": _torch_threads(),
        }
        # A parent that was killed, by whomever, is started once more; a task that kills it twice has itself to blame.
        ended = self._attempt(request, timeout_s) or self._attempt(request, timeout_s)
        outcome = _outcome(ended, directory, timeout_s)
        if own_scratch and not isinstance(outcome, TaskDone):
            remove_tree(directory)
        return outcome

    def _attempt(self, request: dict[str, Any], timeout_s: float) -> Ended | None:
        """None if the parent process died meanwhile."""
        with self._lock:
            parent = self._running_parent()
            while (sockets := parent.submit()) is None:  # it died since the last task
                parent = self._running_parent()
        channel, watch = sockets
        with channel, watch:
            ended = supervise(channel, watch, request, timeout_s)
        if ended is None:
            parent.stop()
        return ended

    def _running_parent(self) -> ParentProcess:
        if self._closed:
            raise WorkerError("the worker pool is closed")
        if self._parent is None or not self._parent.alive():
            if self._parent is not None:
                self._parent.stop()
            if self._root is None:
                self._root = self._make_root()
            private_dir(self._root)  # a parent that was shut down on its own account removes it
            self._parent = ParentProcess(self._preload, self._python_path, self._root)
            weakref.finalize(self, _finalize, self._parent, os.getpid(), self._root)
        return self._parent

    def _make_root(self) -> Path:
        base = private_dir(self._scratch_root) if self._scratch_root is not None else Path(tempfile.gettempdir())
        return Path(tempfile.mkdtemp(prefix="torch_forge-", dir=base.absolute()))

    def _new_scratch(self) -> Path:
        with self._lock:
            if self._root is None:
                self._root = self._make_root()
            root = self._root
        return private_dir(root / secrets.token_hex(6))

    def _after_fork(self) -> None:
        """A process that the owner forked must not talk over the owner's sockets: it gets a parent process of its own."""
        if self._owner != os.getpid():
            self._reset()


def _finalize(parent: ParentProcess, owner: int, root: Path) -> None:
    """At garbage collection or exit of a pool nobody closed; not in processes that its owner forked."""
    if owner == os.getpid():
        parent.stop()
        shutil.rmtree(root, ignore_errors=True)


def _torch_threads() -> int:
    """What the user's process uses; 0: torch is not imported here, a worker decides by itself."""
    torch = sys.modules.get("torch")
    return int(torch.get_num_threads()) if torch is not None else 0


def _outcome(ended: Ended | None, scratch: Path, timeout_s: float) -> Outcome:
    log = read_log(scratch / LOG_NAME)
    if ended is None:
        killed = int(signal.SIGKILL)
        return TaskDied(killed, -killed, log, 0.0, "WorkerError: the worker parent was killed, twice")
    if ended.expired:
        return TaskExpired(timeout_s, log)
    message = decode(ended.reply)
    if ended.code == 0 and "result" in message:
        return TaskDone(message["result"], scratch, ended.seconds, log)
    return TaskDied(max(0, -ended.code), ended.code, log, ended.seconds, str(message.get("exception", "")))
