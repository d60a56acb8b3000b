"""A task that is talked to: one message, one reply, timed on this side, until either side has enough.

The worker is not believed. A reply counts only if it answers the message that is open, which it proves by a number that it
could not have known before; whatever else it writes ends the session. Each wait has a limit, and the whole session one.
"""

from __future__ import annotations

import math
import secrets
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from torch_forge.machine.ended_tasks import Outcome, TaskDied
from torch_forge.machine.frames import plain, take_frame
from torch_forge.machine.watched import Ended, Watched

CLOSE_S = 10.0
"""How long a task may take to return after the last message."""


@dataclass(frozen=True)
class Reply:
    """What a task answered."""

    value: Any
    """Plain JSON."""
    seconds: float
    """From before the message was sent until the reply was here, by this process's monotonic clock."""


class SessionEnded(Exception):  # noqa: N818 -- not an error: a candidate that dies is a value, and this carries it
    """There will be no reply. ``outcome`` says how the task ended: ``TaskDone`` only if it returned early."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(type(outcome).__name__)
        self.outcome = outcome


class Session:
    """A running task; made by ``WorkerPool.session``. For one thread at a time. Leaving it as a context closes it."""

    def __init__(self, child: Watched, *, timeout_s: float, tell: Callable[[Ended | None, float], Outcome]) -> None:
        """tell: puts an end, None where the parent process died, and the limit that was passed into an outcome."""
        self._child, self._tell = child, tell
        self._timeout_s = timeout_s
        self._deadline = child.begin + timeout_s
        self._outcome: Outcome | None = None

    @property
    def pid(self) -> int:
        """Of the task's process, as the workers' parent has told."""
        return self._child.pid

    def ask(self, message: Any, *, timeout_s: float) -> Reply:
        """Send plain JSON and wait for the reply to it.

        Raises SessionEnded if there is none: the task raised, died, returned, wrote what was not asked for, or took longer
        than ``timeout_s`` or the rest of the session's own limit, and was killed.
        """
        if self._outcome is not None:
            raise SessionEnded(self._outcome)
        child, number = self._child, secrets.randbits(53)
        child.step(0)
        if child.received:
            raise SessionEnded(self._unasked(self._next_frame(time.monotonic())))
        begin = time.monotonic()
        deadline = min(begin + timeout_s, self._deadline)
        child.send({"number": number, "message": message}, deadline - begin)
        body = self._next_frame(deadline)
        seconds = time.monotonic() - begin
        if body is None:
            raise SessionEnded(self._finish(deadline, min(timeout_s, self._timeout_s)))
        answer = plain(body)
        if "reply" not in answer or answer.get("number") != number:
            raise SessionEnded(self._unasked(body))
        return Reply(answer["reply"], seconds)

    def close(self, *, timeout_s: float = CLOSE_S) -> Outcome:
        """Say that there are no more messages and wait for the task's result; killed after ``timeout_s``. Twice is once."""
        if self._outcome is None:
            self._child.hang_up()
            self._finish(min(time.monotonic() + timeout_s, self._deadline), timeout_s)
        assert self._outcome is not None
        return self._outcome

    def kill(self) -> None:
        """End it now."""
        if self._outcome is None:
            self._child.kill()
            self._finish(math.inf, 0.0)

    def __enter__(self) -> Session:  # noqa: PYI034 -- typing.Self is younger than Python 3.10
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self.kill()

    def _next_frame(self, deadline: float) -> bytes | None:
        """None if there is none when the child ended or the time did; an empty one for bytes that cannot become one."""
        child = self._child
        while True:
            try:
                body = take_frame(child.received)
            except ValueError:
                return b""
            left = deadline - time.monotonic()
            if body is not None or child.over or left <= 0:
                return body
            child.step(left)

    def _unasked(self, body: bytes | None) -> Outcome:
        """What it wrote is no reply: perhaps its last words, else it is not listened to any longer."""
        message = plain(body) if body is not None else {}
        if "exception" in message or "result" in message:
            self._child.last = message
            return self._finish(time.monotonic() + CLOSE_S, CLOSE_S)
        self._child.kill()
        ended = self._finish(math.inf, 0.0)
        killed = int(signal.SIGKILL)
        why = "SessionError: it wrote what nobody had asked for"
        self._outcome = TaskDied(killed, -killed, ended.log, time.monotonic() - self._child.begin, why)
        return self._outcome

    def _finish(self, deadline: float, limit_s: float) -> Outcome:
        try:
            self._outcome = self._tell(self._child.end(deadline), limit_s)
        finally:
            self._child.close()
        return self._outcome
