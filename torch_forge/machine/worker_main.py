"""The parent of all workers: a process that has imported torch, never touched CUDA, and forks a child per task.

A fork costs milliseconds where importing torch costs seconds, and a fork is only sound from a process with one thread, no
OpenMP pool and no CUDA. So this process imports and then only waits: it runs no torch operation, and modules named for
preloading must not either (``set_num_threads(1)`` would not be enough: an OpenMP pool that exists at all makes the first
parallel region in a child hang).

It never reads what a child writes: each task brings two sockets, one between its client and the child (request, result),
one between its client and this process (pid, exit code; the client hanging up means kill). So a child can spoil nothing but
its own answer.

Runs as ``main()`` of a fresh interpreter, see ``worker_client.py``; the child's half is ``worker_child.py``.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from torch_forge.machine.frames import ENDED, FORKED, NOT_FORKED, NOTE
from torch_forge.machine.worker_child import child

READY_BYTES = 1 << 16
"""Size limit of the one message from this process to its client that is not about a task."""
ALIVE_CHECK_MS = 1000


def main() -> NoReturn:
    """Import what was asked for, say so, then fork a child per message on the control socket until the client is gone."""
    options = json.loads(sys.argv[2])
    control = socket.socket(fileno=options["control"])
    sys.path[:0] = options["python_path"]
    try:
        _preload(options["preload"])
    except Exception as error:  # process boundary: the client raises it
        traceback.print_exc()
        control.send(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode()[:READY_BYTES])
        os._exit(1)
    control.send(json.dumps({"pid": os.getpid()}).encode())
    parent = Parent(control, options["client"])
    try:
        parent.serve()
    finally:
        parent.kill_all()
        shutil.rmtree(options["root"], ignore_errors=True)
        os._exit(0)


def _preload(modules: list[str]) -> None:
    """Import torch and ``modules``; RuntimeError if one of them touched CUDA."""
    # torch.utils.cpp_extension asks the CUDA driver for devices when it finds a toolkit at import, and a driver that was
    # initialised before a fork is broken after it. An empty CUDA_PATH makes it find none; the build task sets its own.
    hidden = {name: os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")}
    os.environ.pop("CUDA_HOME", None)
    os.environ["CUDA_PATH"] = ""
    for name in ("torch", *modules):
        importlib.import_module(name)
    for name, value in hidden.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    if sys.modules["torch"].cuda.is_initialized():
        raise RuntimeError("a preloaded module initialised CUDA; children forked from here could not use it")
    gc.collect()
    gc.freeze()  # keeps the pages of what is imported shared with the children


class Parent:
    """The loop of this process: tasks by pid, each with the socket on which its client waits."""

    def __init__(self, control: socket.socket, client_pid: int) -> None:
        self._control = control
        self._client_pid = client_pid
        self._tasks: dict[int, socket.socket] = {}
        self._pids: dict[int, int] = {}
        self._poll = select.poll()
        self._wake, wake_write = os.pipe()
        for descriptor in (self._wake, wake_write):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # A terminal's Ctrl-C is the client's to handle; this process ends when the client does.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._poll.register(self._control, select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)

    def serve(self) -> None:
        """Return when the client has closed the control socket or has died.

        The parent pid is polled because a process that the client forked may keep the socket open; PR_SET_PDEATHSIG will not
        do, it fires when the *thread* that started us ends.
        """
        while os.getppid() == self._client_pid:
            for descriptor, _ in self._poll.poll(ALIVE_CHECK_MS):
                if descriptor == self._control.fileno():
                    if not self._accept():
                        return
                elif descriptor == self._wake:
                    with suppress(BlockingIOError):
                        os.read(self._wake, 4096)
                elif descriptor in self._pids:
                    self._poll.unregister(descriptor)
                    _kill_group(self._pids[descriptor])
            self._reap()

    def kill_all(self) -> None:
        """Kill every task and its process group."""
        for pid in self._tasks:
            _kill_group(pid)

    def _accept(self) -> bool:
        """Fork a child for the next message; False if the client hung up."""
        message, descriptors, _, _ = socket.recv_fds(self._control, 1, 2)
        if not message:
            return False
        if len(descriptors) != 2:  # our own descriptors ran out; the client sees both sockets close
            for descriptor in descriptors:
                os.close(descriptor)
            return True
        channel, watch = (socket.socket(fileno=d) for d in descriptors)
        try:
            pid = os.fork()
        except OSError as error:
            _tell(watch, NOT_FORKED, error.errno or 1)
            pid = -1
        if pid == 0:
            child(channel, os.getppid())
        channel.close()
        if pid < 0:
            watch.close()
            return True
        with suppress(OSError):
            os.setpgid(pid, pid)  # the child does it too: whoever comes first
        self._tasks[pid] = watch
        self._pids[watch.fileno()] = pid
        self._poll.register(watch, select.POLLIN)
        _tell(watch, FORKED, pid)
        return True

    def _reap(self) -> None:
        """Collect every child that ended and report it; what is left of its process group is killed first."""
        while True:
            try:
                # WNOWAIT leaves the zombie, so that its pid, and with it the group's name, cannot be reused before the kill.
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            pid = ended.si_pid
            _kill_group(pid)
            _, status = os.waitpid(pid, 0)
            watch = self._tasks.pop(pid, None)
            if watch is None:
                continue
            del self._pids[watch.fileno()]
            with suppress(KeyError):
                self._poll.unregister(watch)
            _tell(watch, ENDED, os.waitstatus_to_exitcode(status))
            watch.close()


def _tell(watch: socket.socket, kind: bytes, number: int) -> None:
    with suppress(OSError):  # the client may be gone
        watch.send(NOTE.pack(kind, number))


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def probe(_payload: Any, _scratch: Path) -> dict[str, Any]:
    """A task for ``torch-forge doctor``: that a worker runs torch, and how many threads its parent has (1 is sound)."""
    import torch

    total = float(torch.ones(1 << 16).sum())
    threads = len(os.listdir(f"/proc/{os.getppid()}/task"))
    return {"works": total == 1 << 16, "parent_threads": threads, "cuda": torch.cuda.is_initialized()}  # type: ignore[no-untyped-call]
