"""The client's half of ``worker_main.py``: starting the workers' parent, handing it a task, watching over the child.

Two sockets belong to each task. On ``channel`` the request goes out and the reply comes in, from a child that may be
hostile: at most so many bytes, until it ends. On ``watch`` the parent says the child's pid and, later, how it ended;
shutting it down kills the child with all that it has started.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_forge.errors import WorkerError
from torch_forge.machine.worker_main import LENGTH, READY_BYTES, RESULT_BYTES, STATUS, send_frame

START_TIMEOUT_S = 180.0
"""Importing torch from a cold network filesystem takes a minute."""
KILL_TIMEOUT_S = 10.0
"""A killed process that waits for a device driver may take seconds to disappear."""
LOG_BYTES = 4 << 20
"""More of a log than this is not read: the first and the last half are."""

REPLY_BYTES = LENGTH.size + RESULT_BYTES
"""A child that sends more is killed."""

PASSED_ON = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TZ", "LANG", "LC_", "TMPDIR", "XDG_", "LD_", "PYTHON",
    "VIRTUAL_ENV", "CONDA_", "NIX_", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH",
    "GCC_", "CC", "CXX",
    "CUDA", "NVIDIA_", "NVCC_", "TORCH", "PYTORCH", "OMP_", "KMP_", "GOMP_", "MKL_", "ATEN_", "DNNL_", "MALLOC_",
)  # fmt: skip
"""Prefixes of the variables that workers see. Candidates run there, and an API key is nothing that a kernel needs."""

BOOTSTRAP = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; sys.path.insert(0, sys.argv[1]); "
    "import torch_forge.machine.worker_main as m; sys.path.pop(0); m.main()"
)
"""``python -m`` would put the user's current directory on the path, where any ``random.py`` would shadow the real one. Our
own package is found through the folder of this copy of it, for the one import that needs it."""


@dataclass(frozen=True)
class Ended:
    """How one child ended, before it is put into words."""

    code: int
    """As in ``subprocess``: negative for a signal."""
    reply: bytes
    expired: bool
    seconds: float


class ParentProcess:
    """One ``worker_main`` process and the control socket to it."""

    def __init__(self, preload: tuple[str, ...], python_path: tuple[str, ...], root: Path) -> None:
        if not sys.executable:
            raise WorkerError("sys.executable is empty: this Python does not know how to start another, so no workers")
        self._log_path = root / "worker.log"
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ready = False
        options = {
            "control": theirs.fileno(),
            "client": os.getpid(),
            "preload": list(preload),
            "python_path": [os.path.abspath(p) for p in python_path],
            "root": str(root),
        }
        package_parent = str(Path(__file__).resolve().parents[2])
        with theirs, self._log_path.open("wb") as log:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", BOOTSTRAP, package_parent, json.dumps(options)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(theirs.fileno(),),
                    env=_environment(os.environ),
                    start_new_session=True,
                    cwd="/",
                )
            except OSError as error:
                self._control.close()
                raise WorkerError(f"cannot start {sys.executable}: {error}") from error

    def alive(self) -> bool:
        return self._process.poll() is None

    def _wait_until_ready(self) -> None:
        """Until it has imported everything. Raises WorkerError if it could not."""
        if self._ready:
            return
        self._control.settimeout(START_TIMEOUT_S)
        try:
            message = self._control.recv(READY_BYTES)
        except TimeoutError as error:
            raise WorkerError(f"the worker parent did not start within {START_TIMEOUT_S:g} s") from error
        finally:
            self._control.settimeout(None)
        if message:
            problem = json.loads(message).get("error")
        else:
            problem = f"it ended with status {self._process.wait(KILL_TIMEOUT_S)}"
        if problem:
            raise WorkerError(f"the worker parent could not start: {problem}\n{read_log(self._log_path)}".rstrip())
        self._ready = True

    def submit(self) -> tuple[socket.socket, socket.socket] | None:
        """Have it fork a child; (to the child, about the child), or None if it is gone. Raises WorkerError as it starts."""
        self._wait_until_ready()
        channel, channel_theirs = socket.socketpair()
        watch, watch_theirs = socket.socketpair()
        with channel_theirs, watch_theirs:
            try:
                socket.send_fds(self._control, [b"t"], [channel_theirs.fileno(), watch_theirs.fileno()])
            except OSError:
                channel.close()
                watch.close()
                self.stop()
                return None
        return channel, watch

    def stop(self) -> None:
        """Hang up and wait; killed if it does not end by itself. Twice does no harm."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)  # a process that ours has forked may hold a copy of the descriptor
        self._control.close()
        try:
            self._process.wait(timeout=KILL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What the parent process, and so every worker, sees of ``environ``."""
    kept = {name: value for name, value in environ.items() if name.startswith(PASSED_ON)}
    # numpy's OpenBLAS starts its threads at import; the parent must have only one to fork soundly.
    return {**kept, "OPENBLAS_NUM_THREADS": "1"}


def supervise(channel: socket.socket, watch: socket.socket, request: dict[str, Any], timeout_s: float) -> Ended | None:
    """Hand the request over, collect the reply, wait for the end; kill at the limit. None if the parent process died.

    Whatever ends this function, Ctrl-C too, no child is left running.
    """
    try:
        channel.settimeout(max(timeout_s, 0.001))
        with contextlib.suppress(OSError):  # a child that is dead already, or does not read: its status tells
            send_frame(channel, request)
        return _collect_all(channel, watch, timeout_s)
    finally:
        with contextlib.suppress(OSError):  # not close: a process that ours has forked may hold a copy of the descriptor
            watch.shutdown(socket.SHUT_RDWR)


def _collect_all(channel: socket.socket, watch: socket.socket, timeout_s: float) -> Ended | None:
    channel.setblocking(False)
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    poll.register(watch, select.POLLIN)
    status, reply, expired, killed = bytearray(), bytearray(), False, False
    begin = time.monotonic()
    deadline = begin + timeout_s
    while len(status) < 2 * STATUS.size:
        late, flooded = time.monotonic() >= deadline, len(reply) > REPLY_BYTES
        if late and killed:
            raise WorkerError(f"a worker could not be killed within {KILL_TIMEOUT_S:g} s")
        if (late or flooded) and not killed:
            expired, killed = late, True
            deadline = time.monotonic() + KILL_TIMEOUT_S
            _unregister(poll, channel)
            watch.shutdown(socket.SHUT_WR)
        for descriptor, _ in poll.poll(max(0.0, deadline - time.monotonic()) * 1e3 + 1):
            if descriptor == watch.fileno():
                part = watch.recv(2 * STATUS.size - len(status))
                if not part:
                    _orphaned(bytes(status))
                    return None
                status += part
            elif not _collect(channel, reply):
                _unregister(poll, channel)
    while not killed and len(reply) <= REPLY_BYTES and _collect(channel, reply):
        pass
    pid, code = (number for (number,) in STATUS.iter_unpack(status))
    if pid == 0:
        raise WorkerError(f"cannot start a worker process: {os.strerror(-code)}")
    return Ended(code, bytes(reply), expired, time.monotonic() - begin)


def _unregister(poll: select.poll, channel: socket.socket) -> None:
    """Stop polling a socket; twice does no harm."""
    with contextlib.suppress(KeyError):
        poll.unregister(channel)


def _collect(channel: socket.socket, reply: bytearray) -> bool:
    """Append what has arrived; False if nothing has or nothing more will."""
    try:
        part = channel.recv(1 << 16)
    except OSError:
        return False
    reply += part
    return bool(part)


def _orphaned(status: bytes) -> None:
    """The parent process died: its child dies with it (PR_SET_PDEATHSIG), but not what that child has started."""
    if len(status) >= STATUS.size:
        (pid,) = STATUS.unpack_from(status)
        if pid > 0:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)


def decode(reply: bytes) -> dict[str, Any]:
    """The one frame in ``reply``; anything else is no answer."""
    if len(reply) < LENGTH.size or LENGTH.unpack_from(reply)[0] != len(reply) - LENGTH.size:
        return {}
    try:
        message = json.loads(reply[LENGTH.size :])
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


def read_log(path: Path) -> str:
    """The text of a log, without its middle if it is long; empty if there is none."""
    try:
        # What a worker left under this name may be a link or a pipe; neither is followed.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= LOG_BYTES:
            return file.read(LOG_BYTES).decode(errors="replace")
        head = file.read(LOG_BYTES // 2)
        file.seek(size - LOG_BYTES // 2)
        left_out = f"\n[{size - LOG_BYTES} bytes left out]\n"
        return head.decode(errors="replace") + left_out + file.read(LOG_BYTES // 2).decode(errors="replace")
