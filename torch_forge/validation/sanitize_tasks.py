"""The worker's half of ``sanitize``: run the commands that it is given in its scratch directory, hand back their words."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torch_forge.machine.process import Finished, run
from torch_forge.machine.sandbox.lock import lock_down

TEXT_BYTES = 256 << 10
"""Of each stream and file, the first so many bytes: a report comes before what follows from it."""


def check(payload: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """Run ``builds`` side by side, then, if all succeeded, ``tools`` side by side.

    payload: ``builds`` and ``tools`` (name -> command), ``limit_s`` for everything. Each tool may leave ``<name>.notes`` and
    ``<name>.report``. Returns the same names with ``exit_status``, ``timed_out``, ``seconds``, ``text``, ``notes`` each.
    """
    lock_down()
    deadline = time.monotonic() + payload["limit_s"]
    builds = _side_by_side(payload["builds"], scratch, deadline)
    tools = _side_by_side(payload["tools"], scratch, deadline) if all(done.ok for done in builds.values()) else {}
    return {
        "builds": {name: _plain(name, done, scratch) for name, done in builds.items()},
        "tools": {name: _plain(name, done, scratch) for name, done in tools.items()},
    }


def _side_by_side(commands: dict[str, Sequence[str]], scratch: Path, deadline: float) -> dict[str, Finished]:
    def one(command: Sequence[str]) -> Finished:
        return run(command, timeout_s=max(0.1, deadline - time.monotonic()), cwd=scratch, own_group=False)

    with ThreadPoolExecutor(max_workers=max(1, len(commands))) as threads:
        return dict(zip(commands, threads.map(one, commands.values()), strict=True))


def _plain(name: str, done: Finished, scratch: Path) -> dict[str, Any]:
    return {
        "exit_status": done.exit_status,
        "timed_out": done.timed_out,
        "seconds": done.seconds,
        "text": _head(scratch / f"{name}.report") + done.stderr[:TEXT_BYTES] + done.stdout[:TEXT_BYTES],
        "notes": _head(scratch / f"{name}.notes"),
    }


def _head(path: Path) -> str:
    """The beginning of a file, which need not be there."""
    if not path.is_file() or path.is_symlink():
        return ""
    with path.open("rb") as file:
        return file.read(TEXT_BYTES).decode(errors="replace")
