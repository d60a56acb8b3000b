"""Run a task in a process that may die, from a process that must not.

``WorkerPool`` keeps one parent process (``worker_main.py``) that has imported torch and forks a child per task. The child
may crash, hang, exit, print or scribble; the caller gets a value that says so. Nothing but JSON comes back, over a socket of
this task alone, and whether the child really ended, and how, is told by the parent, which never listens to it.
"""

from __future__ import annotations

import math
import os
import secrets
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from torch_forge.errors import SandboxError, WorkerError
from torch_forge.machine.ended_tasks import Outcome, TaskDied, TaskDone, TaskExpired, outcome_of
from torch_forge.machine.files import private_dir, remove_tree
from torch_forge.machine.leftovers import ROOM, owned_folder, remove_for_good, sweep
from torch_forge.machine.sandbox.survey import survey
from torch_forge.machine.sessions import Reply, Session, SessionEnded
from torch_forge.machine.watched import Ended, Watched
from torch_forge.machine.worker_client import ParentProcess
from torch_forge.records.codec import to_plain
from torch_forge.records.sandbox import LAYERS, PIDS, ROOT, Confinement, SandboxReport

__all__ = ["Outcome", "Reply", "Session", "SessionEnded", "TaskDied", "TaskDone", "TaskExpired", "WorkerPool"]


class WorkerPool:
    """Killable workers. Thread-safe: as many tasks run at once as threads call ``run``. Starts nothing before the first."""

    def __init__(
        self,
        *,
        preload: Sequence[str] = (),
        scratch_root: Path | None = None,
        python_path: Sequence[str] = (),
        sandbox: str = "auto",
    ) -> None:
        """
        preload: modules that the parent imports after torch; they must run no torch operation.
        scratch_root: where scratch directories are made; default the system's temporary directory.
        python_path: folders to put first on the workers' module path.
        sandbox: how tasks with foreign code are confined: ``auto``, ``require`` or ``off``, as in ``Settings.sandbox``.
        """
        self._sandbox = sandbox
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
                remove_for_good(self._root)

    def folder(self, kind: str) -> Path:
        """A new private folder, gone when the pool is closed or this process ends, in whatever way it does.

        Raises WorkerError if the disk takes none.
        """
        self._after_fork()
        with self._lock:
            try:
                return private_dir(self._rooted() / f"{kind}-{secrets.token_hex(6)}")
            except OSError as error:
                raise WorkerError(f"no folder for a worker can be made: {error}", advice=ROOM) from error

    def run(
        self,
        task: str,
        payload: Any,
        *,
        timeout_s: float,
        env: Mapping[str, str | None] | None = None,
        scratch: Path | None = None,
        memory_bytes: int | None = None,
        confine: Confinement | None = None,
    ) -> Outcome:
        """Call ``task`` (``package.module:function``) as ``function(payload, scratch)`` in a fresh child process.

        payload and result are plain JSON. The child works in ``scratch``, prints into a log there, and sees only the
        variables that ``environment.py`` names plus ``env`` (None unsets). memory_bytes: so much more address space than it
        begins with, each program that it starts likewise; not for CUDA, which reserves far more than it uses. confine: as
        ``confinement`` gives it, for a task that runs foreign code.
        Raises WorkerError if no worker can be started or the pool is closed, SandboxError if a layer cannot be put on.
        """
        request = self._request(task, payload, timeout_s, env, scratch, memory_bytes, confine)
        # A parent that was killed, by whomever, is started once more; a task that kills it twice has itself to blame.
        ended = self._attempt(request, timeout_s, confine) or self._attempt(request, timeout_s, confine)
        directory = Path(request["scratch"])
        outcome = outcome_of(ended, directory, timeout_s, orphaned="WorkerError: the worker parent was killed, twice")
        if scratch is None and not isinstance(outcome, TaskDone):
            remove_tree(directory)
        return outcome

    def session(
        self,
        task: str,
        payload: Any,
        *,
        timeout_s: float,
        env: Mapping[str, str | None] | None = None,
        scratch: Path | None = None,
        memory_bytes: int | None = None,
        confine: Confinement | None = None,
    ) -> Session:
        """Start ``task`` as ``run`` does, to be talked to: ``function(payload, scratch, dialogue)`` in the child.

        ``dialogue`` (``worker_child.Dialogue``) iterates over the messages that ``Session.ask`` sends. timeout_s limits the
        session as a whole. Raises as ``run`` does.
        """
        request = self._request(task, payload, timeout_s, env, scratch, memory_bytes, confine)
        request["session"] = True
        directory = Path(request["scratch"])
        parent, child = self._child(confine)

        def tell(ended: Ended | None, limit_s: float) -> Outcome:
            outcome = outcome_of(ended, directory, limit_s, orphaned="WorkerError: the worker parent was killed")
            if ended is None:
                parent.stop()
            if scratch is None and not isinstance(outcome, TaskDone):
                remove_tree(directory)
            return outcome

        try:
            child.send(request, timeout_s)
            while not child.pid and not child.over and (left := child.begin + timeout_s - time.monotonic()) > 0:
                child.step(left)
        except BaseException:
            child.close()
            raise
        return Session(child, timeout_s=timeout_s, tell=tell)

    def confinement(
        self, *, cuda: bool = False, compilers: bool = False, readable: Sequence[Path | str] = ()
    ) -> Confinement | None:
        """For a task that runs foreign code: all layers that work here; None where the sandbox is switched off.

        The arguments are the fields of ``Confinement``. Raises SandboxError if it is required and too little works here.
        """
        if self._sandbox == "off":
            return None
        report = self.sandbox_report()
        lacking = report.below_minimum
        if cuda and ROOT not in report.active:
            lacking = (*lacking, f"{ROOT} (Landlock does not reach the threads that CUDA has started)")
        if self._sandbox == "require" and lacking:
            raise SandboxError(f"the sandbox is required (TORCH_FORGE_SANDBOX) and lacks here: {', '.join(lacking)}")
        paths = tuple(os.path.abspath(p) for p in (*self._python_path, *readable))
        return Confinement(report.active, paths, cuda, compilers)

    @contextmanager
    def unconfined(self) -> Iterator[None]:
        """Meanwhile tasks with foreign code run without the sandbox; not for use by several threads."""
        before, self._sandbox = self._sandbox, "off"
        try:
            yield
        finally:
            self._sandbox = before

    @property
    def sandbox_required(self) -> bool:
        """Whether foreign code is not to be run at all below the minimum."""
        return self._sandbox == "require"

    def sandbox_report(self) -> SandboxReport:
        """Which layers tasks with foreign code are held in. Found out once in a process, with a task that tries them."""
        if self._sandbox == "off":
            return SandboxReport(missing=dict.fromkeys(LAYERS, "switched off"))
        return survey(self)

    def namespaces_missing(self) -> Mapping[str, str]:
        """Namespaces that tasks cannot be started in here, with the reason. Raises WorkerError."""
        self._after_fork()
        with self._lock:
            try:
                return self._running_parent().gate()
            except ConnectionError:
                return self._running_parent().gate()

    def _request(
        self,
        task: str,
        payload: Any,
        timeout_s: float,
        env: Mapping[str, str | None] | None,
        scratch: Path | None,
        memory_bytes: int | None,
        confine: Confinement | None,
    ) -> dict[str, Any]:
        """What the child is sent first."""
        self._after_fork()
        directory = self.folder("task") if scratch is None else private_dir(scratch).absolute()
        return {
            "task": task,
            "payload": payload,
            "scratch": str(directory),
            "env": dict(env or {}),
            "memory_bytes": memory_bytes,
            "threads": _torch_threads(),
            "session": False,
            "confine": None if confine is None else to_plain(confine),
            # All cores may be busy until the time is over: this limit is for what escaped it.
            "cpu_s": math.ceil(timeout_s + 1) * (os.cpu_count() or 1),
        }

    def _attempt(self, request: dict[str, Any], timeout_s: float, confine: Confinement | None) -> Ended | None:
        """None if the parent process died meanwhile."""
        parent, child = self._child(confine)
        try:
            child.send(request, timeout_s)
            ended = child.end(child.begin + timeout_s)
        finally:
            child.close()
        if ended is None:
            parent.stop()
        return ended

    def _child(self, confine: Confinement | None) -> tuple[ParentProcess, Watched]:
        """A child that waits for its request, and its parent."""
        confined = confine is not None
        by_gate = confine is not None and PIDS in confine.layers
        with self._lock:
            parent = self._running_parent()
            while (child := parent.submit(confined=confined, by_gate=by_gate)) is None:  # it died since the last task
                parent = self._running_parent()
        return parent, child

    def _running_parent(self) -> ParentProcess:
        if self._closed:
            raise WorkerError("the worker pool is closed")
        if self._parent is None or not self._parent.alive():
            if self._parent is not None:
                self._parent.stop()
            self._parent = ParentProcess(self._preload, self._python_path, self._rooted())
            weakref.finalize(self, _stop, self._parent, os.getpid())  # before the root goes: last in, first out
        return self._parent

    def _rooted(self) -> Path:
        """The folder of all that this pool puts on the disk; the parent process removes it if ours is killed."""
        if self._root is None:
            base = private_dir(self._scratch_root) if self._scratch_root is not None else Path(tempfile.gettempdir())
            sweep(base)  # where both were killed
            self._root = owned_folder(base)
            weakref.finalize(self, _remove, self._root, os.getpid())
        return private_dir(self._root)

    def _after_fork(self) -> None:
        """A process that the owner forked must not talk over the owner's sockets: it gets a parent process of its own."""
        if self._owner != os.getpid():
            self._reset()


def _stop(parent: ParentProcess, owner: int) -> None:
    """At garbage collection or exit of a pool nobody closed; not in processes that its owner forked."""
    if owner == os.getpid():
        parent.stop()


def _remove(root: Path, owner: int) -> None:
    """As ``_stop``, and after it."""
    if owner == os.getpid():
        remove_for_good(root)


def _torch_threads() -> int:
    """What the user's process uses; 0: torch is not imported here, a worker decides by itself."""
    torch = sys.modules.get("torch")
    return int(torch.get_num_threads()) if torch is not None else 0
