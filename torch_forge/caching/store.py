"""Stores of entries: the contract, and the directory that fulfils it.

The one idea is that a rename decides. An entry is written and flushed in a staging directory and then renamed to the
name of its content; there is no lock, no index and no file that two processes write. Whoever loses a race finds
an equal entry in place and uses it. Whatever is found damaged is moved aside, and the next put heals it.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol, TypeVar

from torch_forge.caching.disk import Files, LocalFiles, check_root, directory_mode, listed
from torch_forge.caching.entry import ENTRY_FILE, Bad, StoredEntry, decode_entry, fetch_entry, file_facts, read_entry
from torch_forge.caching.staging import leftovers, staging_path
from torch_forge.errors import CacheError, RecordError
from torch_forge.machine.files import TRANSIENT
from torch_forge.records import codec
from torch_forge.records.entry import AnyEntry, CacheKey, KeptEntry, content_name

log = logging.getLogger("torch_forge")

VERSION = "v1"
"""Folder of the cache root that holds the entries; another layout gets another name."""
QUARANTINE = "quarantine"
QUARANTINE_KEEP = 16
"""Damaged entries kept for a look; older ones are deleted."""
RETIRE_AFTER = timedelta(hours=1)
"""An entry replaced by a newer one for the same workload is deleted after this: until then somebody may be loading it."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*-[0-9a-f]{32}")
_RETRY_DELAYS_S = (0.01, 0.05, 0.2, 0.5)
T = TypeVar("T")

Contents = Mapping[str, "bytes | Path"]
"""File name -> its bytes, or where to read them."""


class Store(Protocol):
    """A place where entries are found by key and workload.

    Reading never raises for what is stored: a damaged entry is ``Bad``. Any number of processes may use one store.
    """

    label: str
    """For people: ``user``, ``shared /srv/forge``, ``shipped``."""
    writable: bool
    sources_only: bool
    """Entries are compiled on this machine before use, so they need not come from the same device or compiler."""

    def names(self, key: CacheKey) -> list[str]:
        """``entry_name`` of each entry for the problem and device of ``key``; any order; empty if there are none."""

    def read(self, key: CacheKey, name: str) -> AnyEntry | Bad:
        """The record alone, its files unchecked."""

    def fetch(self, key: CacheKey, name: str) -> StoredEntry | KeptEntry | Bad:
        """The entry with every file checked, as local files."""

    def put(self, entry: AnyEntry, files: Contents) -> StoredEntry | KeptEntry:
        """Store the entry, whole or not at all, and return it as read back. Putting an equal one again changes nothing.

        entry: ``files`` empty, or the facts that the contents must match.
        Raises OSError if the place cannot take it, RecordError if the entry is malformed, CacheError if it is read-only.
        """

    def discard(self, key: CacheKey, name: str, bad: Bad) -> None:
        """Move a damaged entry out of the way, if it is still the one that was found damaged; never raises."""


class DirectoryStore:
    """Entries at ``<root>/v1/<device>/<problem>/<entry>/``."""

    sources_only = False

    def __init__(
        self, root: Path, *, label: str = "user", writable: bool = True, own: bool = True, trust_others: bool = False,
        files: Files | None = None,
    ) -> None:  # fmt: skip
        """own: a private directory (new folders 0700); else new folders get the root's permissions, so that a team can read.

        Raises CacheError if the root is not safe to trust.
        """
        self.root = root
        self.label = label
        self.writable = writable
        self._own = own
        self._trust_others = trust_others
        self._files: Files = files or LocalFiles()
        self._records: dict[Path, AnyEntry] = {}
        self._ignored: set[Path] = set()
        self._swept = False
        check_root(root, trust_others=trust_others, own=own)

    def branch(self, key: CacheKey) -> Path:
        """The folder of one problem on one device class."""
        return self.root / VERSION / key.device / key.problem

    def names(self, key: CacheKey) -> list[str]:
        branch = self.branch(key)
        return [n for n in listed(branch) if _NAME.fullmatch(n) and branch / n not in self._ignored]

    def read(self, key: CacheKey, name: str) -> AnyEntry | Bad:
        directory = self.branch(key) / name
        record = self._records.get(directory)  # a name has one content, so a record once read stays true
        if record is not None:
            return record
        found = self.look(directory)
        if not isinstance(found, Bad):
            self._records[directory] = found
        return found

    def fetch(self, key: CacheKey, name: str) -> StoredEntry | KeptEntry | Bad:
        directory = self.branch(key) / name
        known = self._records.get(directory)
        return self._twice(lambda path, trust: fetch_entry(path, trust, known), directory)

    def look(self, directory: Path) -> AnyEntry | Bad:
        """The record in an entry's directory, read again."""
        return self._twice(read_entry, directory)

    def check(self, directory: Path) -> StoredEntry | KeptEntry | Bad:
        """The entry in a directory, every file hashed."""
        return self._twice(fetch_entry, directory)

    def put(self, entry: AnyEntry, files: Contents) -> StoredEntry | KeptEntry:
        if not self.writable:
            raise CacheError(f"the {self.label} cache at {self.root} is read-only")
        self._sweep()
        staging = staging_path(self.root)
        try:
            name = self._stage(staging, entry, files)
            stored = self._publish(staging, self.branch(entry.key) / name)
        finally:
            self._files.remove_tree(staging)
        self._retire(entry, name)
        return stored

    def discard(self, key: CacheKey, name: str, bad: Bad) -> None:
        directory = self.branch(key) / name
        self._records.pop(directory, None)
        if bad.gone:
            return
        log.warning("the cache entry %s cannot be used: %s", directory, bad.reason)
        if self.writable:
            self.quarantine(directory, bad)
        else:
            self._ignored.add(directory)

    def remove(self, directory: Path) -> None:
        """Delete an entry so that readers see all of it or nothing; never raises."""
        aside = staging_path(self.root)
        try:
            self._make_dir(aside.parent)
            directory.rename(aside)
        except OSError:
            aside = directory
        self.delete(aside)

    def delete(self, path: Path) -> None:
        """Delete a directory tree, or the link or file that stands in its place; never raises."""
        if path.is_symlink() or not path.is_dir():
            with contextlib.suppress(OSError):
                path.unlink()
        else:
            self._files.remove_tree(path)

    def _stage(self, staging: Path, entry: AnyEntry, files: Contents) -> str:
        """Write everything; the name that the content asks for."""
        contents = {name: data if isinstance(data, bytes) else data.read_bytes() for name, data in sorted(files.items())}
        record = codec.dumps(completed(entry, contents)).encode()
        mode = self._make_dir(staging)
        for name, data in {**contents, ENTRY_FILE: record}.items():
            self._files.write(staging / name, data, mode & 0o666)
        return content_name(entry.workload, record)

    def _publish(self, staging: Path, final: Path) -> StoredEntry | KeptEntry:
        """Rename, tolerating races and remote file systems; what is read back afterwards decides. Raises OSError."""
        there = self.check(final)
        for delay_s in _RETRY_DELAYS_S:
            if not isinstance(there, Bad):
                return there
            if not there.gone:
                self.quarantine(final, there)
            try:
                self._make_dir(final.parent)  # each time: a prune may have removed it while it was empty
                self._files.publish(staging, final)
            except OSError as error:
                if error.errno not in TRANSIENT:
                    raise
                time.sleep(delay_s)
            there = self.check(final)
        if isinstance(there, Bad):
            raise OSError(f"{final} was written but cannot be read back: {there.reason}")
        return there

    def quarantine(self, directory: Path, bad: Bad) -> None:
        """Move a damaged entry aside, unless another process has replaced it since; keep the last few."""
        place = self.root / QUARANTINE
        try:
            if directory.lstat().st_ino == bad.inode:
                self._make_dir(place)
                directory.rename(place / f"{time.time_ns()}-{directory.name}")
        except OSError:
            self._ignored.add(directory)
        for name in listed(place)[:-QUARANTINE_KEEP]:
            self.delete(place / name)

    def _retire(self, entry: AnyEntry, entry_name: str) -> None:
        """Delete what ``entry`` has replaced: older entries for the same key and workload."""
        for name in self.names(entry.key):
            if name.rpartition("-")[0] == entry.workload and name != entry_name:
                other = self.read(entry.key, name)
                if not isinstance(other, Bad) and other.key == entry.key and _age_gap(other, entry) > RETIRE_AFTER:
                    self.remove(self.branch(entry.key) / name)

    def _make_dir(self, path: Path) -> int:
        """Create a directory below the root and those above it; their permissions."""
        self._files.make_dir(self.root, 0o700)
        mode = directory_mode(self.root, own=self._own, trust_others=self._trust_others)
        for directory in reversed([path, *(p for p in path.parents if self.root in p.parents)]):
            self._files.make_dir(directory, mode)
        return mode

    def _twice(self, read: Callable[[Path, bool], T | Bad], directory: Path) -> T | Bad:
        """A second look before an entry counts as damaged: a remote file may be a moment late."""
        found = read(directory, self._trust_others)
        if isinstance(found, Bad) and not found.gone:
            time.sleep(_RETRY_DELAYS_S[0])
            found = read(directory, self._trust_others)
        return found

    def _sweep(self) -> None:
        """Once per store: delete what killed processes left behind."""
        if not self._swept:
            self._swept = True
            for left in leftovers(self.root):
                self._files.remove_tree(left)


class ShippedStore(DirectoryStore):
    """Sources that come with the package, at ``<root>/<arch>/<problem>/<entry>/``; see ``csrc_generated/README.md``."""

    sources_only = True

    def __init__(self, root: Path) -> None:
        # Part of the installation: whoever can write there can change the package itself.
        super().__init__(root, label="shipped", writable=False, own=False, trust_others=True)

    def branch(self, key: CacheKey) -> Path:
        return self.root / key.arch / key.problem


def completed(entry: AnyEntry, contents: Mapping[str, bytes]) -> AnyEntry:
    """The entry with the facts of its files, exactly as it will be decoded again.

    Raises RecordError if it would not be, or if facts that it already had do not match the contents.
    """
    facts = {name: file_facts(data) for name, data in contents.items()}
    if isinstance(entry, KeptEntry):
        if facts:
            raise RecordError("a decision to keep eager has no files")
    elif entry.files and dict(entry.files) != facts:
        raise RecordError(f"the files of {entry.workload} do not match their recorded hashes")
    else:
        entry = replace(entry, files=facts)
    return decode_entry(codec.dumps(entry).encode())


def _age_gap(older: AnyEntry, newer: AnyEntry) -> timedelta:
    return datetime.fromisoformat(newer.created) - datetime.fromisoformat(older.created)
