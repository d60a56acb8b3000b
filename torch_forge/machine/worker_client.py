"""The client's half of ``worker_main.py``: starting the workers' parent, asking it for children, reading their logs."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from torch_forge.errors import WorkerError
from torch_forge.machine.environment import passed_on
from torch_forge.machine.frames import CONFINED_TASK, GATE, LEAVE, TASK
from torch_forge.machine.watched import KILL_TIMEOUT_S, Watched
from torch_forge.machine.worker_main import READY_BYTES

START_TIMEOUT_S = 180.0
"""Importing torch from a cold network filesystem takes a minute."""
LOG_BYTES = 4 << 20
"""More of a log than this is not read: the first and the last half are."""

BOOTSTRAP = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; sys.path.insert(0, sys.argv[1]); "
    "import torch_forge.machine.worker_main as m; sys.path.pop(0); m.main()"
)
"""``python -m`` would put the user's current directory on the path, where any ``random.py`` would shadow the real one. Our
own package is found through the folder of this copy of it, for the one import that needs it."""


class ParentProcess:
    """One ``worker_main`` process and the control socket to it."""

    def __init__(self, preload: tuple[str, ...], python_path: tuple[str, ...], root: Path) -> None:
        if not sys.executable:
            raise WorkerError("sys.executable is empty: this Python does not know how to start another, so no workers")
        self._log_path = root / "worker.log"
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._gate: socket.socket | None = None
        self._missing: dict[str, str] = {}
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
                    env=passed_on(os.environ),
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

    def gate(self) -> dict[str, str]:
        """Have it fork the gate, if it has not; namespace layers that are missing there, with the reason.

        Raises WorkerError if there is none, ConnectionError if the parent is gone.
        """
        self._wait_until_ready()
        if self._gate is None:
            gate, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                try:
                    socket.send_fds(self._control, [GATE], [theirs.fileno()])
                except OSError as error:
                    gate.close()
                    raise ConnectionError from error
            self._gate = gate
            gate.settimeout(START_TIMEOUT_S)
            try:
                message = gate.recv(READY_BYTES)
            except TimeoutError:
                message = b""
            gate.settimeout(None)
            if not message:
                raise WorkerError(f"the gate of the workers did not open\n{read_log(self._log_path)}".rstrip())
            self._missing = json.loads(message)
        return self._missing

    def submit(self, *, confined: bool, by_gate: bool) -> Watched | None:
        """Have it fork a child that waits for its request; None if whoever is to fork is gone. Raises WorkerError."""
        self._wait_until_ready()
        control = self._control
        if by_gate:
            try:
                self.gate()
            except ConnectionError:
                self.stop()
                return None
            control = self._gate or control
        channel, channel_theirs = socket.socketpair()
        watch, watch_theirs = socket.socketpair()
        with channel_theirs, watch_theirs:
            try:
                kind = CONFINED_TASK if confined else TASK
                socket.send_fds(control, [kind], [channel_theirs.fileno(), watch_theirs.fileno()])
            except OSError:
                channel.close()
                watch.close()
                self.stop()
                return None
        return Watched(channel, watch)

    def stop(self) -> None:
        """Hang up and wait; killed if it does not end by itself. Twice does no harm."""
        with contextlib.suppress(OSError):
            self._control.send(LEAVE, socket.MSG_DONTWAIT)
        for control in filter(None, (self._gate, self._control)):
            with contextlib.suppress(OSError):
                control.shutdown(socket.SHUT_RDWR)  # a process that ours has forked may hold a copy of the descriptor
            control.close()
        try:
            self._process.wait(timeout=KILL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


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
