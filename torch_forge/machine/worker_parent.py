"""The loop that forks a child per task and tells how it ended, from a process with one thread that has imported torch.

It never reads what a child writes: each task brings two sockets, one between its client and the child (request, replies),
one between its client and this process (pid, status; the client hanging up means kill). So a child can spoil nothing but its
own answer. A confined child keeps the second one until it locks itself down, before any foreign code is loaded.

The same loop runs in the gate (``worker_gate.py``), where each child gets a pid namespace, whose end is certain to be the
end of all that the child has started.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from torch_forge.machine.frames import CONFINED_TASK, ENDED, FORKED, GATE, LEAVE, NOT_FORKED, NOTE
from torch_forge.machine.sandbox.namespaces import PidNamespaces
from torch_forge.machine.worker_child import child

ALIVE_CHECK_MS = 1000


@dataclass
class _Task:
    pid: int
    first: int
    """The first process of its pid namespace; 0: it has none of its own, or that process has ended."""
    watch: socket.socket
    """On which its client waits."""
    code: int | None = None


class Parent:
    """Tasks by pid, until the control socket is closed."""

    def __init__(
        self,
        control: socket.socket,
        *,
        client_lives: Callable[[], bool],
        open_gate: Callable[[socket.socket], NoReturn] | None = None,
        namespaces: PidNamespaces | None = None,
    ) -> None:
        """open_gate: what a fork of this process runs to be the gate. namespaces: for the children, in the gate."""
        self.dismissed = False
        """The client asked it to leave, and lives."""
        self._control = control
        self._client_lives, self._open_gate, self._namespaces = client_lives, open_gate, namespaces
        self._tasks: dict[int, _Task] = {}
        """By pid, and by the pid of its namespace's first process too."""
        self._watches: dict[int, _Task] = {}
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
        """Return when the client has closed the control socket or has died."""
        while self._client_lives():
            for descriptor, _ in self._poll.poll(ALIVE_CHECK_MS):
                if descriptor == self._control.fileno():
                    if not self._accept():
                        return
                elif descriptor == self._wake:
                    with suppress(BlockingIOError):
                        os.read(self._wake, 4096)
                elif descriptor in self._watches:
                    self._poll.unregister(descriptor)
                    _kill(self._watches[descriptor])
            self._reap()

    def kill_all(self) -> None:
        """Kill every task with what it has started."""
        for task in self._tasks.values():
            _kill(task)

    def _accept(self) -> bool:
        """Fork a child for the next message; False if the client hung up."""
        message, descriptors, _, _ = socket.recv_fds(self._control, 1, 2)
        if not message or message == LEAVE:
            self.dismissed = message == LEAVE
            return False
        if len(descriptors) != (1 if message == GATE else 2):  # ours ran out; the client sees its sockets close
            for descriptor in descriptors:
                os.close(descriptor)
            return True
        sockets = [socket.socket(fileno=d) for d in descriptors]
        for one in sockets:
            one.set_inheritable(False)
        if message == GATE:
            self._fork_gate(sockets[0])
        else:
            self._fork_task(*sockets, confined=message == CONFINED_TASK)
        return True

    def _fork_gate(self, control: socket.socket) -> None:
        assert self._open_gate is not None
        with control, suppress(OSError):  # the client sees the socket close
            if os.fork() == 0:
                self._open_gate(control)

    def _fork_task(self, channel: socket.socket, watch: socket.socket, *, confined: bool) -> None:
        try:
            first = self._namespaces.begin() if self._namespaces is not None else 0
            pid = self._fork(first)
        except OSError as error:
            _tell(watch, NOT_FORKED, error.errno or 1)
            channel.close()
            watch.close()
            return
        if pid == 0:
            # The parent of a namespace's second process is outside of it, where it cannot see whether that lives.
            child(channel, watch if confined else None, parent=None if first else os.getppid())
        channel.close()
        with suppress(OSError):
            os.setpgid(pid, pid)  # the child does it too: whoever comes first
        task = _Task(pid, first, watch)
        self._tasks[pid] = task
        if first:
            self._tasks[first] = task
        self._watches[watch.fileno()] = task
        self._poll.register(watch, select.POLLIN)
        if not confined:
            _tell(watch, FORKED, pid)

    def _fork(self, first: int) -> int:
        try:
            pid = os.fork()
        except OSError:
            if first:
                os.kill(first, signal.SIGKILL)
            raise
        finally:
            # In the child this fails: it has no right to a namespace around its own, and needs none.
            if first:
                with suppress(OSError):
                    self._leave()
        return pid

    def _leave(self) -> None:
        assert self._namespaces is not None
        self._namespaces.leave()

    def _reap(self) -> None:
        """Collect every child that ended; a task is told to have ended when its namespace has too."""
        while True:
            try:
                # WNOWAIT leaves the zombie, so that its pid, and with it the group's name, cannot be reused before the kill.
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            task = self._tasks.pop(ended.si_pid, None)
            if task is not None:
                _kill(task)
            _, status = os.waitpid(ended.si_pid, 0)
            if task is None:
                continue
            if ended.si_pid == task.pid:
                task.code = os.waitstatus_to_exitcode(status)
            else:
                task.first = 0
            if task.code is not None and not task.first:
                self._tell_end(task, task.code)

    def _tell_end(self, task: _Task, code: int) -> None:
        del self._watches[task.watch.fileno()]
        with suppress(KeyError):
            self._poll.unregister(task.watch)
        _tell(task.watch, ENDED, code)
        task.watch.close()


def _tell(watch: socket.socket, kind: bytes, number: int) -> None:
    with suppress(OSError):  # the client may be gone
        watch.send(NOTE.pack(kind, number))


def _kill(task: _Task) -> None:
    if task.first:
        os.kill(task.first, signal.SIGKILL)  # and the kernel all others in its namespace
    if task.code is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(task.pid, signal.SIGKILL)
