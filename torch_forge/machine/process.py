"""Run one short command to its end or to its limit, leaving no process behind.

A compiler driver starts further processes; killing only the driver would leave them running and holding the pipes. So
each command leads its own session, and the whole group is killed at the limit or when the caller is interrupted. A worker,
whose own group is killed when it ends, keeps its commands in it instead.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LAST_WORDS_S = 2.0
"""How long the pipes of a killed command are read on."""


@dataclass(frozen=True)
class Finished:
    """What a command left."""

    command: tuple[str, ...]
    exit_status: int
    """Negative: killed by that signal. 127: it could not be started, ``stderr`` says why."""
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with status 0."""
        return self.exit_status == 0 and not self.timed_out

    @property
    def output(self) -> str:
        """Everything it printed."""
        return self.stdout + self.stderr


def run(
    command: Sequence[str],
    *,
    timeout_s: float,
    cwd: Path | None = None,
    env: Mapping[str, str | None] | None = None,
    own_group: bool = True,
) -> Finished:
    """Run ``command`` without a shell and without input.

    env: changes to the environment, None unsets. own_group: at the limit its process group gets SIGKILL; False, for workers:
    it stays in the caller's group and at the limit only it is killed, what it started ends with the group.
    """
    begin = time.monotonic()
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=changed_environment(os.environ, env or {}),
            start_new_session=own_group,
        )
    except OSError as error:
        return Finished(tuple(command), 127, "", f"{command[0]}: {error.strerror or error}\n", 0.0, False)
    timed_out = False
    with process:
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            timed_out = True
            _kill(process, own_group)
            stdout, stderr = _last_words(process)
        except BaseException:
            _kill(process, own_group)
            raise
    seconds = time.monotonic() - begin
    return Finished(
        tuple(command),
        process.returncode,
        stdout.decode(errors="replace"),
        stderr.decode(errors="replace"),
        seconds,
        timed_out,
    )


def changed_environment(environ: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """``environ`` with ``changes`` applied; None unsets."""
    merged: dict[str, str | None] = {**environ, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def _kill(process: subprocess.Popen[bytes], own_group: bool) -> None:
    if not own_group:
        process.kill()
        return
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _last_words(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """(stdout, stderr) of a killed command. What it started outside a group of its own may hold the pipes open."""
    try:
        return process.communicate(timeout=LAST_WORDS_S)
    except subprocess.TimeoutExpired as error:
        return error.stdout or b"", error.stderr or b""
