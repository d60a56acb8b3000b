"""A store without a disk: the contract of ``caching.store.Store`` in its smallest form."""

from __future__ import annotations

from pathlib import Path

from torch_forge.caching.entry import Bad, StoredEntry
from torch_forge.caching.store import Contents, completed
from torch_forge.errors import CacheError
from torch_forge.records.entry import AnyEntry, CacheKey, KeptEntry, entry_name


class MemoryStore:
    """Entries in a dict; a test damages one by putting a reason into ``damaged``."""

    def __init__(self, label: str = "memory", *, writable: bool = True, sources_only: bool = False) -> None:
        self.label = label
        self.writable = writable
        self.sources_only = sources_only
        self.entries: dict[tuple[str, str, str], AnyEntry] = {}
        self.damaged: dict[str, str] = {}

    def _branch(self, key: CacheKey) -> tuple[str, str]:
        return (key.arch if self.sources_only else key.device, key.problem)

    def names(self, key: CacheKey) -> list[str]:
        return [name for *branch, name in self.entries if tuple(branch) == self._branch(key)]

    def read(self, key: CacheKey, name: str) -> AnyEntry | Bad:
        return self.entries.get((*self._branch(key), name), Bad("gone", gone=True))

    def fetch(self, key: CacheKey, name: str) -> StoredEntry | KeptEntry | Bad:
        entry = self.read(key, name)
        if name in self.damaged:
            return Bad(self.damaged[name])
        return entry if isinstance(entry, KeptEntry | Bad) else StoredEntry(entry, Path("/memory") / name)

    def put(self, entry: AnyEntry, files: Contents) -> StoredEntry | KeptEntry:
        if not self.writable:
            raise CacheError("read-only")
        complete = completed(entry, {n: d if isinstance(d, bytes) else d.read_bytes() for n, d in files.items()})
        self.entries[(*self._branch(entry.key), entry_name(complete))] = complete
        self.damaged.pop(entry_name(complete), None)
        stored = self.fetch(entry.key, entry_name(complete))
        assert not isinstance(stored, Bad)
        return stored

    def discard(self, key: CacheKey, name: str, bad: Bad) -> None:
        if not bad.gone:
            self.entries.pop((*self._branch(key), name), None)
