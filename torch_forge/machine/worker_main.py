"""The parent of all workers: a process that has imported torch, never touched CUDA, and forks a child per task.

A fork costs milliseconds where importing torch costs seconds, and a fork is only sound from a process with one thread, no
OpenMP pool and no CUDA. So this process imports and then only waits: it runs no torch operation, and modules named for
preloading must not either (``set_num_threads(1)`` would not be enough: an OpenMP pool that exists at all makes the first
parallel region in a child hang).

It never reads what a child writes: each task brings two sockets, one between its client and the child (request, result),
one between its client and this process (pid, exit code; the client hanging up means kill). So a child can spoil nothing but
its own answer.

Runs as ``main()`` of a fresh interpreter, see ``workers.py``; the child's half is ``child`` and below.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import importlib
import json
import os
import resource
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

READY_BYTES = 1 << 16
"""Size limit of the one message from this process to its client that is not about a task."""
RESULT_BYTES = 64 << 20
"""A task's answer is a small record; bulk data travels in files."""
LOG_NAME = "log.txt"
"""A task's stdout and stderr, in its scratch directory."""
FILE_BYTES = 8 << 30
"""No file a task writes may be larger, so that a kernel printing in a loop cannot fill the disk."""
LENGTH = struct.Struct("<q")
STATUS = struct.Struct("<i")
ALIVE_CHECK_MS = 1000
PR_SET_PDEATHSIG = 1
CRASHED_BEFORE_TASK = 70
"""Exit code of a child that failed in our code, before the task's."""


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
            _tell(watch, 0, -(error.errno or 1))
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
        _tell(watch, pid)
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
            _tell(watch, os.waitstatus_to_exitcode(status))
            watch.close()


def _tell(watch: socket.socket, *numbers: int) -> None:
    with suppress(OSError):  # the client may be gone
        watch.send(b"".join(STATUS.pack(n) for n in numbers))


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def child(channel: socket.socket, parent: int) -> NoReturn:
    """Run one task and exit; never returns into the parent's loop."""
    code = CRASHED_BEFORE_TASK
    try:
        channel = _detach(channel, parent)
        code = _run_task(channel)
    except BaseException:  # process boundary: into the log of the parent, or of the task if it was opened
        traceback.print_exc()
    finally:
        # Not sys.exit: nothing that was registered in the parent, or by the task, runs now.
        os._exit(code)


def _detach(channel: socket.socket, parent: int) -> socket.socket:
    """Leave the parent's group, signals and descriptors; die with it."""
    with suppress(OSError):
        os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(CRASHED_BEFORE_TASK)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    kept = channel.detach()
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != kept:
            with suppress(OSError):  # the descriptor of this listing is closed already
                os.close(int(name))
    return socket.socket(fileno=kept)


def _run_task(channel: socket.socket) -> int:
    """The exit code: 0 if the result was sent, 1 if the task raised, its own if it called sys.exit."""
    request = json.loads(receive_frame(channel))
    scratch = request["scratch"]
    _open_log(os.path.join(scratch, LOG_NAME))
    try:
        _prepare(request)
        module, _, function = request["task"].partition(":")
        result = getattr(importlib.import_module(module), function)(request["payload"], Path(scratch))
        send_frame(channel, {"result": result})
        return 0
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    except BaseException as error:  # process boundary: the client gets it as a value
        traceback.print_exc()
        send_frame(channel, {"exception": f"{type(error).__name__}: {error}"})
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _open_log(path: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    faulthandler.enable(all_threads=False)  # the Python stack of a crash, in the log


def _prepare(request: dict[str, Any]) -> None:
    """Directory, limits, environment and threads of this task."""
    os.chdir(request["scratch"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _lower_limit(resource.RLIMIT_FSIZE, FILE_BYTES)
    if request["memory_bytes"] is not None:
        _lower_limit(resource.RLIMIT_AS, request["memory_bytes"])
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")  # if memory runs out, this process goes, not the user's
    os.environ.pop("OPENBLAS_NUM_THREADS", None)  # set by workers.py for the parent only
    # What a compiler killed at the limit leaves in its temporary directory goes with the scratch directory.
    for name, value in {"TMPDIR": request["scratch"], **request["env"]}.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    tempfile.tempdir = None
    if request["threads"]:
        import torch

        torch.set_num_threads(request["threads"])


def _lower_limit(kind: int, wanted: int) -> None:
    hard = resource.getrlimit(kind)[1]
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(kind, (limit, limit))


def probe(_payload: Any, _scratch: Path) -> dict[str, Any]:
    """A task for ``torch-forge doctor``: that a worker runs torch, and how many threads its parent has (1 is sound)."""
    import torch

    total = float(torch.ones(1 << 16).sum())
    threads = len(os.listdir(f"/proc/{os.getppid()}/task"))
    return {"works": total == 1 << 16, "parent_threads": threads, "cuda": torch.cuda.is_initialized()}  # type: ignore[no-untyped-call]


def send_frame(channel: socket.socket, value: object) -> None:
    """Send ``value`` as length-framed JSON. Raises ValueError if it is too large or not plain, TypeError likewise."""
    body = json.dumps(value).encode()
    if len(body) > RESULT_BYTES:
        raise ValueError(f"{len(body)} bytes of JSON, the limit is {RESULT_BYTES}; hand bulk data over in scratch files")
    channel.sendall(LENGTH.pack(len(body)) + body)


def receive_frame(channel: socket.socket) -> bytes:
    """The body of the next frame. Raises EOFError if the other side closed first."""
    return _receive_exactly(channel, LENGTH.unpack(_receive_exactly(channel, LENGTH.size))[0])


def _receive_exactly(channel: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = channel.recv(min(count - len(data), 1 << 16))
        if not part:
            raise EOFError("the other side closed the socket")
        data += part
    return bytes(data)
