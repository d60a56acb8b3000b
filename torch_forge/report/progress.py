"""What a user sees while a session runs: one live line on a terminal, a few log lines elsewhere, or nothing.

The pipeline tells a ``Progress`` what happens and never prints. Everything goes to stderr: stdout belongs to the user.
A candidate that is slower or wrong is the normal case in a search, so candidates are counted, not announced.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TextIO, runtime_checkable

from torch_forge.errors import UsageError

logger = logging.getLogger(__name__)


@runtime_checkable
class Progress(Protocol):
    """Told of events in order, from one thread. ``close`` may come at any time and more than once; it ends the display."""

    def stage(self, name: str) -> None:
        """A stage begins: ``profile``, ``capture``, ``forge``, ``install``, ``check``."""

    def region(self, name: str, index: int, total: int, eager_us: float | None = None) -> None:
        """Work on a region begins; index counts from 1; eager_us: one call of it, if measured by now."""

    def candidate(self, outcome: str, best_us: float | None) -> None:
        """A candidate of the region is done; best_us: the fastest right one so far, if any."""

    def note(self, text: str) -> None:
        """Something the user should know, one line."""

    def close(self) -> None:
        """The session ended, well or not."""


class QuietProgress:
    """Shows nothing; the notes are in the report."""

    def stage(self, name: str) -> None: ...

    def region(self, name: str, index: int, total: int, eager_us: float | None = None) -> None: ...

    def candidate(self, outcome: str, best_us: float | None) -> None: ...

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


class RegionLine:
    """The region in work, and its one line of text."""

    def __init__(self, name: str = "", index: int = 0, total: int = 0, eager_us: float | None = None) -> None:
        self.name = name
        self.index = index
        self.total = total
        self.eager_us = eager_us
        self.best_us: float | None = None
        self.outcomes: Counter[str] = Counter()

    def add(self, outcome: str, best_us: float | None) -> None:
        self.outcomes[outcome] += 1
        self.best_us = best_us

    def describe(self) -> str:
        """``[2/5] softmax: best 84.0 us, eager 212.0 us (2.5x); 7 passed, 1 not built``."""
        parts = []
        if self.best_us is not None:
            parts.append(f"best {self.best_us:.1f} us")
        if self.eager_us is not None:
            ratio = f" ({self.eager_us / self.best_us:.1f}x)" if self.best_us else ""
            parts.append(f"eager {self.eager_us:.1f} us{ratio}")
        counts = ", ".join(f"{count} {outcome}" for outcome, count in self.outcomes.items())
        text = "; ".join(filter(None, (", ".join(parts), counts)))
        return f"[{self.index}/{self.total}] {self.name}" + (f": {text}" if text else "")


class LogProgress:
    """A line per stage, per finished region and per note.

    Through logging, if the application has set it up (its levels then decide); else, or if ``direct``, to ``stream``.
    """

    def __init__(self, stream: TextIO | None = None, *, direct: bool = False) -> None:
        self._stream = stream
        self._direct = direct
        self._region: RegionLine | None = None
        self._begin = time.monotonic()
        self._closed = False

    def stage(self, name: str) -> None:
        self._finish_region()
        self._say(name)

    def region(self, name: str, index: int, total: int, eager_us: float | None = None) -> None:
        self._finish_region()
        self._region = RegionLine(name, index, total, eager_us)

    def candidate(self, outcome: str, best_us: float | None) -> None:
        if self._region is not None:
            self._region.add(outcome, best_us)

    def note(self, text: str) -> None:
        self._say(text)

    def close(self) -> None:
        self._finish_region()
        self._closed = True

    def _finish_region(self) -> None:
        if self._region is not None:
            self._say(self._region.describe())
            self._region = None

    def _say(self, text: str) -> None:
        if self._closed:
            return
        line = f"{time.monotonic() - self._begin:6.1f} s  {text}"
        if logger.hasHandlers() and not self._direct:
            logger.info(line)
            return
        stream = self._stream or sys.stderr
        stream.write(f"torch_forge {line}\n")
        stream.flush()


class RichProgress:
    """One live line on a terminal, gone at the end: stage, region, best so far against eager, outcomes, time."""

    def __init__(self, stream: TextIO | None = None) -> None:
        from rich.console import Console
        from rich.progress import Progress as Bar
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
        console = Console(file=stream or sys.stderr)
        # The user's own prints stay on their own streams.
        self._bar = Bar(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
        self._task = self._bar.add_task("starting")
        self._region: RegionLine | None = None
        self._bar.start()

    def stage(self, name: str) -> None:
        self._region = None
        self._show(name)

    def region(self, name: str, index: int, total: int, eager_us: float | None = None) -> None:
        self._region = RegionLine(name, index, total, eager_us)
        self._show(self._region.describe())

    def candidate(self, outcome: str, best_us: float | None) -> None:
        if self._region is not None:
            self._region.add(outcome, best_us)
            self._show(self._region.describe())

    def note(self, text: str) -> None:
        """Above the live line, and stays."""
        self._bar.console.print(f"torch_forge: {text}", markup=False, highlight=False)

    def close(self) -> None:
        self._bar.stop()

    def _show(self, text: str) -> None:
        self._bar.update(self._task, description=text)


class CallbackProgress:
    """Hands every event to a function as a dict: ``{"event": "candidate", "elapsed_s": 3.1, ...}``."""

    def __init__(self, callback: Callable[[Mapping[str, Any]], object]) -> None:
        self._callback = callback
        self._begin = time.monotonic()
        self._closed = False

    def stage(self, name: str) -> None:
        self._emit("stage", name=name)

    def region(self, name: str, index: int, total: int, eager_us: float | None = None) -> None:
        self._emit("region", name=name, index=index, total=total, eager_us=eager_us)

    def candidate(self, outcome: str, best_us: float | None) -> None:
        self._emit("candidate", outcome=outcome, best_us=best_us)

    def note(self, text: str) -> None:
        self._emit("note", text=text)

    def close(self) -> None:
        self._emit("close")
        self._closed = True

    def _emit(self, event: str, **fields: Any) -> None:
        if not self._closed:
            self._callback({"event": event, "elapsed_s": time.monotonic() - self._begin, **fields})


def make_progress(option: object = "auto", stream: TextIO | None = None) -> Progress:
    """The progress that an option asks for.

    ``auto``: a live line on a terminal, else a few lines; ``on``: lines even where logging is set up to hide them;
    ``off``: nothing; a function: gets a dict per event; an object with the methods of ``Progress``: itself.
    stream: default stderr. Raises UsageError for anything else.
    """
    stream = stream or sys.stderr
    if option == "off" or option is False:
        return QuietProgress()
    if option in ("auto", "on") or option is True:
        if _is_live_terminal(stream):
            return RichProgress(stream)
        return LogProgress(stream, direct=option != "auto")
    if isinstance(option, Progress):
        return option
    if callable(option):
        return CallbackProgress(option)
    raise UsageError(f"progress={option!r} is not known", advice="Use 'auto', 'on', 'off' or a function that takes a dict.")


def _is_live_terminal(stream: TextIO) -> bool:
    if not stream.isatty():
        return False
    from rich.console import Console

    console = Console(file=stream)
    return console.is_terminal and not console.is_dumb_terminal
