"""The client's view of one child: what it sends, what is noted about it, and its certain end.

Two sockets belong to each task. On ``channel`` the request goes out and replies come in, from a child that may be hostile:
at most so many bytes at a time. On ``watch`` the parent notes the child's pid and, later, how it ended; shutting it down
kills the child with all that it has started.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from torch_forge.errors import WorkerError
from torch_forge.machine.frames import (
    ENDED,
    FORKED,
    LOCKED,
    NOT_FORKED,
    NOT_LOCKED,
    NOTE,
    REPLY_BYTES,
    plain,
    send_frame,
    take_frame,
)

KILL_TIMEOUT_S = 10.0
"""A killed process that waits for a device driver may take seconds to disappear."""


@dataclass(frozen=True)
class Ended:
    """How one child ended, before it is put into words."""

    code: int
    """As in ``subprocess``: negative for a signal."""
    message: dict[str, Any]
    """The last it said; empty if that was nothing, or not one whole frame."""
    expired: bool
    seconds: float
    locked: bool | None
    """As in ``Watched``."""


@dataclass(eq=False)
class Watched:
    """One child, from the moment at which the parent was asked for it."""

    channel: socket.socket
    watch: socket.socket
    received: bytearray = field(default_factory=bytearray)
    pid: int = 0
    """0 until it is known."""
    code: int | None = None
    locked: bool | None = None
    """What a confined task has said of its sandbox: False, a layer failed and it has ended itself."""
    orphaned: bool = False
    """The parent process died before it could say how the child ended."""
    last: dict[str, Any] = field(default_factory=dict)
    """Its last words, where they were taken out of ``received`` already."""
    killed_at: float = 0.0
    """When it was first told to be killed, by ``time.monotonic``."""

    def __post_init__(self) -> None:
        self.begin = time.monotonic()
        self._notes = bytearray()
        self._listening = True
        self._poll = select.poll()
        self._poll.register(self.channel, select.POLLIN)
        self._poll.register(self.watch, select.POLLIN)

    @property
    def over(self) -> bool:
        """Whether no more will come."""
        return self.code is not None or self.orphaned

    @property
    def flooded(self) -> bool:
        return len(self.received) > REPLY_BYTES

    def send(self, value: object, timeout_s: float) -> None:
        """Send a frame as far as the child takes it: how one ended that does not read is noted. Raises as ``send_frame``."""
        self.channel.settimeout(max(timeout_s, 0.001))
        with contextlib.suppress(OSError):
            send_frame(self.channel, value)
        self.channel.setblocking(False)

    def step(self, timeout_s: float) -> None:
        """Take in whatever comes next, if it comes within the time. Raises WorkerError if there is no child at all."""
        for descriptor, _ in self._poll.poll(timeout_s * 1e3 + 1 if timeout_s > 0 else 0):
            if descriptor == self.watch.fileno():
                self._take_notes()
            elif not self._take_bytes():
                self._stop_listening()

    def hang_up(self) -> None:
        """Send no more; the child may still."""
        with contextlib.suppress(OSError):
            self.channel.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """Have the parent kill it, and take nothing more of what it says."""
        self._stop_listening()
        self.killed_at = self.killed_at or time.monotonic()
        with contextlib.suppress(OSError):  # not close: a process that ours has forked may hold a copy of the descriptor
            self.watch.shutdown(socket.SHUT_WR)

    def end(self, deadline: float) -> Ended | None:
        """Wait until it ended, kill it at the deadline (``time.monotonic``). None if the parent process died meanwhile.

        Raises WorkerError if it could not be killed.
        """
        expired = False
        while not self.over:
            now = time.monotonic()
            if not self.killed_at and (now >= deadline or self.flooded):
                expired = now >= deadline
                self.kill()
            if self.killed_at and now >= self.killed_at + KILL_TIMEOUT_S:
                raise WorkerError(f"a worker could not be killed within {KILL_TIMEOUT_S:g} s")
            self.step((self.killed_at + KILL_TIMEOUT_S if self.killed_at else deadline) - now)
        if self.code is None:
            return None
        while self._listening and not self.flooded and self._take_bytes():
            pass
        return Ended(self.code, self.last or self._last_words(), expired, time.monotonic() - self.begin, self.locked)

    def close(self) -> None:
        """Leave no child running and no descriptor open."""
        with contextlib.suppress(OSError):
            self.watch.shutdown(socket.SHUT_RDWR)
        self.watch.close()
        self.channel.close()

    def _last_words(self) -> dict[str, Any]:
        try:
            body = take_frame(self.received)
        except ValueError:
            return {}
        return plain(body) if body is not None and not self.received else {}

    def _take_bytes(self) -> bool:
        """Append what has arrived; False if nothing has or nothing more will."""
        try:
            part = self.channel.recv(1 << 16)
        except OSError:
            return False
        self.received += part
        return bool(part)

    def _stop_listening(self) -> None:
        if self._listening:
            self._listening = False
            self._poll.unregister(self.channel)

    def _take_notes(self) -> None:
        part = self.watch.recv(1 << 10)
        if not part:
            self._orphan()
        self._notes += part
        while len(self._notes) >= NOTE.size:
            kind, number = NOTE.unpack_from(self._notes)
            del self._notes[: NOTE.size]
            if kind == FORKED:
                self.pid = number
            elif kind in {LOCKED, NOT_LOCKED}:
                self.locked = kind == LOCKED
            elif kind == ENDED:
                self.code = number
            elif kind == NOT_FORKED:
                raise WorkerError(f"cannot start a worker process: {os.strerror(number)}")

    def _orphan(self) -> None:
        """The parent process died: its child dies with it (PR_SET_PDEATHSIG), but not what that child has started."""
        self.orphaned = True
        if self.pid > 0:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
