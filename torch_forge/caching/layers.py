"""The cache as the pipeline sees it: layers of stores, asked in order, that never fail the user.

What this process already found or decided comes first, then the user's directory, shared directories, and the sources
shipped with the package. An answer for exactly this workload, from any layer, goes before a kernel
that merely may serve it. A store that cannot be written costs a warning; what was to be stored there
then lives in a private directory until the process ends.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from torch_forge.caching.disk import Files
from torch_forge.caching.entry import Bad, StoredEntry
from torch_forge.caching.journal import Journal, journal_path
from torch_forge.caching.store import Contents, DirectoryStore, ShippedStore, Store
from torch_forge.errors import CacheError
from torch_forge.machine.files import remove_tree
from torch_forge.machine.leftovers import owned_folder
from torch_forge.records.entry import SCHEMA, AnyEntry, CacheEntry, CacheKey, Environment, KeptEntry
from torch_forge.records.program import Lowered
from torch_forge.records.session import RegionResult
from torch_forge.settings import Settings

log = logging.getLogger("torch_forge")

MAX_REASONS = 16
"""Reasons that a miss lists; more entries than this say nothing new."""


@dataclass(frozen=True)
class Shared:
    """A cache directory that several users read."""

    path: Path
    writable: bool = False
    """Winners are written there too."""
    trust_others: bool = False
    """Accept it although other users can write to it: they can run code in this process."""


@dataclass(frozen=True)
class Found:
    """A kernel that may serve the workload."""

    stored: StoredEntry
    layer: str
    """``Store.label``."""
    exact: bool
    """Tuned on this very workload; else it serves it by its certificate."""

    @property
    def needs_build(self) -> bool:
        """Only sources: compile them before use."""
        return self.stored.needs_build


@dataclass(frozen=True)
class Kept:
    """It was decided, by measurement, that this workload stays as it is."""

    entry: KeptEntry
    layer: str


@dataclass(frozen=True)
class Missed:
    """Nothing usable; why, one line per entry that was considered."""

    reasons: tuple[str, ...]


Answer = Found | Kept | Missed


@dataclass(frozen=True)
class _Hit:
    """One stored entry of one layer, its record read."""

    store: Store
    name: str
    entry: AnyEntry


class Cache:
    """Everything that is remembered between runs. Safe to use from several threads and processes."""

    def __init__(
        self, settings: Settings, *, shared: Sequence[Path | Shared] = (), shipped: Path | None = None,
        environment: Environment | None = None, trust_others: bool = False, files: Files | None = None,
    ) -> None:  # fmt: skip
        """shared: directories of others, read-only unless ``Shared`` says more. shipped: ``csrc_generated``.

        environment: this run's; without it, decisions made under other versions are believed. trust_others: use
        ``settings.cache_dir`` although other users can write to it. files: for tests.
        Raises CacheError if a directory is not safe to trust.
        """
        self._strict = settings.strict
        self._environment = environment
        self._user: DirectoryStore | None = None
        stores: list[Store] = []
        if not settings.skip_cache:
            self._user = DirectoryStore(settings.cache_dir, trust_others=trust_others, files=files)
            stores = [self._user, *(_shared_store(s) for s in shared)]
            stores += [ShippedStore(shipped)] if shipped is not None else []
        self._set_up(stores)

    @classmethod
    def over(cls, stores: Iterable[Store], *, environment: Environment | None = None) -> Cache:
        """A cache over stores made elsewhere, first one first; journals stay in memory."""
        cache = cls.__new__(cls)
        cache._strict, cache._environment, cache._user = False, environment, None
        cache._set_up(list(stores))
        return cache

    def _set_up(self, stores: list[Store]) -> None:
        self._stores = stores
        self._session: DirectoryStore | None = None
        self._memory: dict[tuple[CacheKey, str], Found | Kept] = {}
        self._unusable: set[Path] = set()
        self._warned: dict[str, str] = {}

    def find(
        self, key: CacheKey, workload: str, lowered: Lowered | None = None, largest_span: int = 0, *, can_build: bool = True
    ) -> Answer:
        """What is known of one workload, from files only: no compiler, no network, no torch; never raises for what is there.

        lowered: its loop form, None if it has none. largest_span: elements spanned by its largest tensor.
        can_build: False passes over entries that are sources only.
        """
        remembered = self._memory.get((key, workload))
        if remembered is not None and _is_alive(remembered):
            return remembered
        reasons: list[str] = []
        for exact in (True, False):
            for hit in self._hits(key, workload, exact=exact, reasons=reasons):
                against = self._reasons_against(hit, key, workload, lowered, largest_span)
                if not against:
                    answer = self._open(hit, key, exact=exact, can_build=can_build)
                    if not isinstance(answer, str):
                        self._memory[key, workload] = answer
                        return answer
                    against = [answer]
                reasons += [f"{hit.store.label}, {hit.name[:24]}: {reason}" for reason in against]
        return Missed(tuple(dict.fromkeys(reasons))[:MAX_REASONS] or ("no entry for this problem on this device",))

    def put(self, entry: CacheEntry, files: Contents) -> StoredEntry:
        """Store a winner in every layer that can be written, forget its journal; the first copy is returned.

        entry: with ``files`` empty. files: ``kernel.cu`` or ``kernel.cpp``, ``glue.cpp``, ``kernel.so``, ``glue.so``,
        each as bytes or a path to copy from. Raises RecordError if the entry is malformed; OSError if not even a temporary
        directory takes it; under ``strict`` CacheError where the warning would be.
        """
        stored, label = self._store(entry, files)
        assert isinstance(stored, StoredEntry)
        self._decided(Found(stored, label, exact=True), stored.entry)
        return stored

    def keep(self, key: CacheKey, workload: str, result: RegionResult) -> KeptEntry:
        """Store the decision that a workload stays as it is, with its figures: the next run need not measure again."""
        environment = self._environment or Environment("", "", "", "", "")
        stored, label = self._store(KeptEntry(SCHEMA, key, workload, result, environment, now()), {})
        assert isinstance(stored, KeptEntry)
        self._decided(Kept(stored, label), stored)
        return stored

    @property
    def complaints(self) -> tuple[str, ...]:
        """What was warned of so far: a message with advice for each layer that could not be written."""
        return tuple(self._warned.values())

    def journal(self, key: CacheKey, workload: str) -> Journal:
        """The trials of an unfinished run of the same workload, and where to note new ones."""
        return Journal(journal_path(self._user.root, key, workload) if self._user else None)

    def forget(self, stored: StoredEntry, reason: str) -> None:
        """Never offer this entry again: its library did not load or failed. The user's own copy is quarantined."""
        self._unusable.add(stored.directory)
        key = stored.entry.key
        self._memory = {k: v for k, v in self._memory.items() if not (isinstance(v, Found) and v.stored == stored)}
        for store in (self._user, self._session):
            if store is not None and store.branch(key) == stored.directory.parent:
                store.discard(key, stored.directory.name, Bad(reason, inode_of(stored.directory)))

    def _hits(self, key: CacheKey, workload: str, *, exact: bool, reasons: list[str]) -> list[_Hit]:
        """Entries of every layer, tuned on exactly this workload or on others, in the order in which to try them."""
        hits: list[tuple[bool, int, float, _Hit]] = []
        for layer, store in enumerate(self._layers()):
            for name in store.names(key):
                if (name.rpartition("-")[0] == workload) != exact:
                    continue
                entry = store.read(key, name)
                if isinstance(entry, Bad):
                    store.discard(key, name, entry)
                    reasons.append(f"{store.label}, {name[:24]}: {entry.reason}")
                elif exact or isinstance(entry, CacheEntry):
                    made = datetime.fromisoformat(entry.created).timestamp()
                    hits.append((store.sources_only, layer, -made, _Hit(store, name, entry)))
        return [hit for *_, hit in sorted(hits, key=lambda h: h[:3])]

    def _reasons_against(
        self, hit: _Hit, key: CacheKey, workload: str, lowered: Lowered | None, largest_span: int
    ) -> list[str]:
        reasons = hit.entry.key.reasons_against(key, sources_only=hit.store.sources_only)
        if isinstance(hit.entry, CacheEntry):
            return reasons + hit.entry.certificate.reasons_against(workload, lowered, largest_span)
        return reasons + (hit.entry.reasons_against(self._environment) if self._environment else [])

    def _open(self, hit: _Hit, key: CacheKey, *, exact: bool, can_build: bool) -> Found | Kept | str:
        """The entry with its files checked, or why not."""
        if isinstance(hit.entry, KeptEntry):
            return Kept(hit.entry, hit.store.label)
        stored = hit.store.fetch(key, hit.name)
        if isinstance(stored, Bad):
            hit.store.discard(key, hit.name, stored)
            return stored.reason
        assert isinstance(stored, StoredEntry)
        if stored.directory in self._unusable:
            return "failed earlier in this process"
        if stored.needs_build and not can_build:
            return "sources only, and they cannot be compiled here"
        return Found(stored, hit.store.label, exact)

    def _layers(self) -> list[Store]:
        return [*([self._session] if self._session else []), *self._stores]

    def _store(self, entry: AnyEntry, files: Contents) -> tuple[StoredEntry | KeptEntry, str]:
        """Put into every writable layer; the first copy and its layer."""
        first: tuple[StoredEntry | KeptEntry, str] | None = None
        for store in self._stores:
            if store.writable:
                try:
                    stored = store.put(entry, files)
                except OSError as error:
                    self._cannot_write(store, error)
                else:
                    first = first or (stored, store.label)
        if first is not None:
            return first
        if self._session is None:
            self._session = DirectoryStore(_session_dir(), label="this process")
        return self._session.put(entry, files), self._session.label

    def _cannot_write(self, store: Store, error: OSError) -> None:
        """One warning per store, or an error if the user asked for errors."""
        where = f" ({store.root})" if isinstance(store, DirectoryStore) else ""
        reason = error.strerror or str(error)
        problem = CacheError(
            f"the {store.label} cache{where} cannot be written, results end with this process: {reason}",
            advice="Make room there or allow writing, or set TORCH_FORGE_CACHE_DIR to another directory of yours.",
        )
        if self._strict:
            raise problem from error
        if store.label not in self._warned:
            self._warned[store.label] = problem.explain()
            log.warning("%s", problem.explain())

    def _decided(self, answer: Found | Kept, entry: AnyEntry) -> None:
        self._memory[entry.key, entry.workload] = answer
        if self._session is None or answer.layer != self._session.label:
            self.journal(entry.key, entry.workload).delete()


def now() -> str:
    """The time as entries record it: UTC, ISO 8601 with microseconds."""
    return datetime.now(timezone.utc).isoformat(timespec="microseconds")


def inode_of(directory: Path) -> int:
    """0 if it is gone."""
    try:
        return directory.lstat().st_ino
    except OSError:
        return 0


def _is_alive(answer: Found | Kept) -> bool:
    """False if somebody emptied the cache meanwhile."""
    return isinstance(answer, Kept) or answer.stored.kernel_source.exists()


def _shared_store(shared: Path | Shared) -> DirectoryStore:
    s = shared if isinstance(shared, Shared) else Shared(shared)
    return DirectoryStore(s.path, label=f"shared {s.path}", writable=s.writable, own=False, trust_others=s.trust_others)


def _session_dir() -> Path:
    """A private directory deleted when this process, not a fork of it, exits."""
    path = owned_folder()
    owner = os.getpid()
    atexit.register(lambda: remove_tree(path) if os.getpid() == owner else None)
    return path
