"""Transcripts: every call of a client as one JSON line, and a client that plays such a file back without a key.

Replies are played in the order in which they were recorded. Prompts hold timings, which differ from run to run and
from device to device, so they are not matched unless asked for.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch_forge.errors import LLMError, RecordError
from torch_forge.generation.llm.client import Client, Message, Refusal, RefusalKind, Reply
from torch_forge.generation.llm.scrub import Scrubber
from torch_forge.records import codec


@dataclass(frozen=True)
class Exchange:
    """One call: what was asked and what came back."""

    model: str
    max_tokens: int
    messages: tuple[Message, ...]
    outcome: Reply | Refusal


class RecordingClient:
    """Passes calls on to another client and appends each to a file, without keys, readable by the owner only."""

    def __init__(self, client: Client, path: Path, scrub: Scrubber | None = None) -> None:
        self._client = client
        self._path = path
        self._scrub = scrub or Scrubber.for_process(os.environ)

    @property
    def model(self) -> str:
        return self._client.model

    def complete(self, messages: Sequence[Message], *, max_tokens: int, timeout_s: float) -> Reply | Refusal:
        """The other client's outcome, recorded."""
        outcome = self._client.complete(messages, max_tokens=max_tokens, timeout_s=timeout_s)
        self._append(Exchange(self.model, max_tokens, tuple(messages), outcome))
        return outcome

    def _append(self, exchange: Exchange) -> None:
        # Scrubbed as values, not as JSON: a key next to an escape sequence must be seen as it is.
        line = json.dumps(_scrubbed(codec.to_plain(exchange), self._scrub), allow_nan=False)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(line + "\n")


class ReplayClient:
    """Plays recorded outcomes back, in order."""

    def __init__(self, exchanges: Iterable[Exchange], *, match_prompts: bool = False) -> None:
        """match_prompts: refuse (MALFORMED) when asked something other than what was recorded."""
        self._exchanges = list(exchanges)
        self._next = 0
        self._match = match_prompts

    @classmethod
    def load(cls, path: Path, *, match_prompts: bool = False) -> ReplayClient:
        """From a transcript file. Raises LLMError if it cannot be read."""
        return cls(read_transcript(path), match_prompts=match_prompts)

    @property
    def model(self) -> str:
        return self._exchanges[0].model if self._exchanges else "replay"

    def complete(self, messages: Sequence[Message], *, max_tokens: int, timeout_s: float) -> Reply | Refusal:
        """The next recorded outcome; the limits are those of the recording."""
        del max_tokens, timeout_s
        if self._next >= len(self._exchanges):
            return Refusal(RefusalKind.EXHAUSTED, f"all {len(self._exchanges)} recorded replies have been played")
        exchange = self._exchanges[self._next]
        if self._match and exchange.messages != tuple(messages):
            return Refusal(RefusalKind.MALFORMED, f"call {self._next + 1} asks something other than what was recorded")
        self._next += 1
        return exchange.outcome


def read_transcript(path: Path) -> list[Exchange]:
    """All exchanges of a file; a last line that was cut off by a crash is left out. Raises LLMError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [codec.loads(Exchange, line) for line in lines if line.endswith("\n")]
    except (OSError, UnicodeDecodeError, RecordError) as error:
        advice = "Record a new one, or name another file."
        raise LLMError(f"cannot read the transcript {path}: {error}", advice=advice) from error


def _scrubbed(plain: object, scrub: Scrubber) -> object:
    if isinstance(plain, str):
        return scrub.values(plain)
    if isinstance(plain, list):
        return [_scrubbed(v, scrub) for v in plain]
    if isinstance(plain, dict):
        return {k: _scrubbed(v, scrub) for k, v in plain.items()}
    return plain
