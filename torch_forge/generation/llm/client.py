"""What the author needs of a language model: one call, and every way it can fail as a value.

Providers, replays and scripted fakes implement ``Client``. A call never raises for anything that a network or a
model can do; it hands back a ``Refusal`` that names the kind, so that a tuning run goes on with templates.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Message:
    """One turn of a chat."""

    role: str
    """``system``, ``user`` or ``assistant``."""
    content: str


@dataclass(frozen=True)
class Usage:
    """What one call consumed, retries included."""

    prompt_tokens: int
    completion_tokens: int
    """As the provider counted them; estimated from the text where it did not."""
    cost_usd: float | None
    """US dollars; None if unknown (no price listed, or a request that may have been billed without an answer)."""
    seconds: float
    """Wall time, waiting between retries included."""


NOTHING_USED = Usage(0, 0, 0.0, 0.0)


@dataclass(frozen=True)
class Reply:
    """The model answered with text."""

    text: str
    finish_reason: str
    """``stop``; ``length`` if the answer was cut off; the provider's own word otherwise."""
    model: str
    """As the provider names it."""
    usage: Usage


class RefusalKind(enum.Enum):
    """Why there is no candidate."""

    TIMEOUT = "timeout"
    RATE_LIMITED = "rate limited"
    QUOTA = "quota"
    AUTH = "auth"
    UNKNOWN_MODEL = "unknown model"
    BAD_REQUEST = "bad request"
    TOO_LONG = "prompt too long"
    DECLINED = "declined"
    UNAVAILABLE = "unavailable"
    MALFORMED = "malformed"
    EMPTY = "empty"
    CUT_OFF = "cut off"
    NO_SOURCE = "no source"
    FORBIDDEN = "forbidden code"
    DUPLICATE = "duplicate"
    EXHAUSTED = "replay exhausted"


FINAL = frozenset(
    {RefusalKind.AUTH, RefusalKind.QUOTA, RefusalKind.UNKNOWN_MODEL, RefusalKind.BAD_REQUEST, RefusalKind.EXHAUSTED}
)
"""Kinds that the same call would meet again: asking once more only costs time."""


@dataclass(frozen=True)
class Refusal:
    """No usable answer. ``message`` is fit for a log: no key is in it."""

    kind: RefusalKind
    message: str
    usage: Usage = NOTHING_USED


class Client(Protocol):
    """A language model behind one call."""

    @property
    def model(self) -> str:
        """``provider/model``, for the author field and the report."""
        ...

    def complete(self, messages: Sequence[Message], *, max_tokens: int, timeout_s: float) -> Reply | Refusal:
        """One answer of at most ``max_tokens``, within ``timeout_s`` seconds of wall time, retries included.

        Must return within about a second after the limit whatever the other side does, and must not raise for
        anything that the other side does.
        """
        ...
