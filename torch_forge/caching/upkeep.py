"""Looking after a cache directory: what is in it, is it sound, what may go.

Everything walks the directory as it is; nothing depends on an index that could disagree with it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from torch_forge.caching.disk import listed
from torch_forge.caching.entry import Bad
from torch_forge.caching.journal import JOURNALS
from torch_forge.caching.staging import STAGING, leftovers
from torch_forge.caching.store import QUARANTINE, VERSION, DirectoryStore
from torch_forge.records.entry import AnyEntry, CacheEntry

UNTOUCHED_JOURNAL_S = 30 * 86400.0
"""A tuning run not resumed for this long will not be."""


@dataclass(frozen=True)
class Located:
    """One entry found in a cache directory."""

    device: str
    problem: str
    name: str
    directory: str
    size_bytes: int
    entry: AnyEntry | Bad


@dataclass(frozen=True)
class DeviceUse:
    """What is stored for one device class."""

    device: str
    kernels: int
    kept: int
    """Decisions to stay eager."""
    bad: int
    size_bytes: int
    oldest: str
    """UTC; empty if no entry can be read."""
    newest: str


@dataclass(frozen=True)
class CacheInfo:
    """A cache directory at a glance."""

    root: str
    exists: bool
    size_bytes: int
    """Of everything in it."""
    devices: tuple[DeviceUse, ...]
    unfinished_runs: int
    """Tuning journals."""
    quarantined: int
    staging: int
    """Entries being written, or left over from a killed process."""


@dataclass(frozen=True)
class Pruned:
    """What a prune removed."""

    entries: tuple[str, ...]
    """Directories."""
    leftovers: int
    """Staging directories, quarantined entries and journals."""
    freed_bytes: int


def walk(store: DirectoryStore) -> Iterator[Located]:
    """Every entry in the directory, its record read, its files not checked."""
    base = store.root / VERSION
    for device in listed(base):
        for problem in listed(base / device):
            for name in listed(base / device / problem):
                directory = base / device / problem / name
                yield Located(device, problem, name, str(directory), tree_bytes(directory), store.look(directory))


def survey(store: DirectoryStore) -> CacheInfo:
    """Counts and sizes."""
    root = store.root
    by_device: dict[str, list[Located]] = {}
    for located in walk(store):
        by_device.setdefault(located.device, []).append(located)
    return CacheInfo(
        root=str(root),
        exists=root.is_dir(),
        size_bytes=tree_bytes(root),
        devices=tuple(_device_use(device, found) for device, found in sorted(by_device.items())),
        unfinished_runs=len(_journals(root)),
        quarantined=len(listed(root / QUARANTINE)),
        staging=len(listed(root / STAGING)),
    )


def _device_use(device: str, found: Sequence[Located]) -> DeviceUse:
    sound = [f.entry for f in found if not isinstance(f.entry, Bad)]
    kernels = sum(isinstance(e, CacheEntry) for e in sound)
    created = sorted((e.created for e in sound), key=datetime.fromisoformat) or [""]
    return DeviceUse(
        device=device,
        kernels=kernels,
        kept=len(sound) - kernels,
        bad=len(found) - len(sound),
        size_bytes=sum(f.size_bytes for f in found),
        oldest=created[0],
        newest=created[-1],
    )


def verify(store: DirectoryStore, *, quarantine: bool) -> tuple[tuple[Located, ...], int]:
    """The damaged entries, every file of every entry hashed, and how many entries there are.

    quarantine: also move them out of the way.
    """
    damaged, total = [], 0
    for located in walk(store):
        total += 1
        directory = Path(located.directory)
        checked = located.entry if isinstance(located.entry, Bad) else store.check(directory)
        if isinstance(checked, Bad) and not checked.gone:
            damaged.append(replace(located, entry=checked))
            if quarantine:
                store.quarantine(directory, checked)
    return tuple(damaged), total


def prune(
    store: DirectoryStore, *, max_bytes: int | None = None, older_than_s: float | None = None, everything: bool = False
) -> Pruned:
    """Delete leftovers always; then entries older than a limit; then the oldest until the rest fits.

    everything: all entries, journals and the quarantine. Other files in the directory are never touched.
    """
    now_s = time.time()
    before = tree_bytes(store.root)
    left = _prune_leftovers(store, now_s, everything=everything)
    removed: list[str] = []
    entries = sorted(walk(store), key=_age_order)
    total = sum(e.size_bytes for e in entries)
    for located in entries:
        expired = older_than_s is not None and now_s - _created_s(located) > older_than_s
        if everything or expired or (max_bytes is not None and total > max_bytes):
            store.remove(Path(located.directory))
            removed.append(located.directory)
            total -= located.size_bytes
    _drop_empty(store.root)
    return Pruned(tuple(removed), left, max(0, before - tree_bytes(store.root)))


def _prune_leftovers(store: DirectoryStore, now_s: float, *, everything: bool) -> int:
    root = store.root
    old_journals = [j for j in _journals(root) if everything or now_s - _mtime(j) > UNTOUCHED_JOURNAL_S]
    quarantined = [root / QUARANTINE / name for name in listed(root / QUARANTINE)]
    gone = [*leftovers(root), *quarantined, *old_journals]
    for path in gone:
        store.delete(path)
    return len(gone)


def _journals(root: Path) -> list[Path]:
    return sorted((root / JOURNALS).glob("*/*.jsonl"))


def _age_order(located: Located) -> tuple[bool, float]:
    """Damaged ones first, then the oldest."""
    return not isinstance(located.entry, Bad), _created_s(located)


def _created_s(located: Located) -> float:
    if isinstance(located.entry, Bad):
        return _mtime(Path(located.directory))
    return datetime.fromisoformat(located.entry.created).timestamp()


def _mtime(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return time.time()


def _drop_empty(root: Path) -> None:
    """Remove empty problem and device folders; one that is being filled refuses, and its writer makes it again."""
    for pattern in (f"{VERSION}/*/*", f"{VERSION}/*", f"{JOURNALS}/*"):
        for directory in root.glob(pattern):
            if directory.is_dir() and not directory.is_symlink() and not listed(directory):
                with contextlib.suppress(OSError):
                    directory.rmdir()


def tree_bytes(path: Path) -> int:
    """Sum of file sizes below a path, links not followed; what vanishes meanwhile counts nothing."""
    files = [path]
    if path.is_dir() and not path.is_symlink():
        files = [Path(folder) / name for folder, _, names in os.walk(path) for name in names]
    total = 0
    for file in files:
        with contextlib.suppress(OSError):
            total += file.lstat().st_size
    return total
