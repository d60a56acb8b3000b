"""The diary of one tuning run, so that a run that is killed goes on where it stopped.

One JSON line per finished trial, flushed to the disk before the next one starts. A kill can only spoil the last line;
a line that cannot be read is skipped and its trial is run again. The file goes when the decision is stored.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from torch_forge.errors import RecordError
from torch_forge.machine.files import private_dir
from torch_forge.records import codec
from torch_forge.records.entry import CacheKey
from torch_forge.records.outcomes import Trial

log = logging.getLogger("torch_forge")

JOURNALS = "journals"
"""Folder of the cache root."""
MAX_BYTES = 256 << 20
"""A longer file is not read: no tuning run writes that much."""


def journal_path(root: Path, key: CacheKey, workload: str) -> Path:
    """``<root>/journals/<device>/<problem>-<workload>-<digest of the key>.jsonl``."""
    return root / JOURNALS / key.device / f"{key.problem}-{workload}-{codec.digest(key, length=8)}.jsonl"


class Journal:
    """Finished trials of one workload under one key. A disk that cannot take them costs the resuming, not the run."""

    def __init__(self, path: Path | None) -> None:
        """path: where to keep it; None: in memory only."""
        self._path = path
        self._trials = _read(path) if path is not None else []

    @property
    def trials(self) -> tuple[Trial, ...]:
        """Those found when it was opened, then those appended."""
        return tuple(self._trials)

    @property
    def finished(self) -> Mapping[str, Trial]:
        """``Candidate.digest`` -> its last trial. The library it names may be gone."""
        return {trial.candidate.digest: trial for trial in self._trials}

    def append(self, trial: Trial) -> None:
        """Add one trial; it is on the disk when this returns."""
        self._trials.append(trial)
        if self._path is None:
            return
        try:
            _write_line(self._path, codec.canonical_json(trial).encode())
        except OSError as error:
            log.warning("this tuning run cannot be resumed if it is interrupted: %s: %s", self._path, error.strerror)
            self._path = None

    def delete(self) -> None:
        """Remove the file: the decision has been stored."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
        self._trials.clear()


def _write_line(path: Path, line: bytes) -> None:
    private_dir(path.parent)
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "r+b", buffering=0, closefd=True) as file:
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            line = b"\n" + line  # a line cut off by a kill must not swallow this one
        rest = memoryview(line + b"\n")
        while rest:
            rest = rest[file.write(rest) or 0 :]
        os.fsync(fd)


def _read(path: Path) -> list[Trial]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError:
        return []
    trials = []
    for line in data.splitlines() if len(data) <= MAX_BYTES else []:
        with contextlib.suppress(RecordError, UnicodeDecodeError, RecursionError):
            trials.append(codec.loads(Trial, line.decode()))
    return trials
