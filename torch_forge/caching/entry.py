"""One entry on disk: which files it has, and how it is read without trusting any of them.

An entry that is truncated, altered, linked elsewhere or from another version is not an error but a ``Bad`` value with
its reason; whoever asked goes on as if it were not there. Nothing here unpickles, imports or executes what it reads.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from torch_forge.errors import RecordError
from torch_forge.records import codec
from torch_forge.records.entry import AnyEntry, CacheEntry, FileFacts, KeptEntry, content_name

ENTRY_FILE = "entry.json"
KERNEL_SOURCES: Mapping[str, str] = {"cuda": "kernel.cu", "cpu": "kernel.cpp"}
"""Backend -> name of the kernel's source."""
GLUE_SOURCE = "glue.cpp"
KERNEL_LIBRARY = "kernel.so"
GLUE_LIBRARY = "glue.so"
FILE_NAMES = frozenset({*KERNEL_SOURCES.values(), GLUE_SOURCE, KERNEL_LIBRARY, GLUE_LIBRARY})
"""Every name an entry may list; anything else is foreign."""

MAX_JSON_BYTES = 16 << 20
MAX_FILE_BYTES = 512 << 20
"""A library above this is not one of ours; also bounds what import writes."""


@dataclass(frozen=True)
class StoredEntry:
    """A kernel entry as files on this machine, every one checked against its hash."""

    entry: CacheEntry
    directory: Path

    @property
    def kernel_library(self) -> Path:
        """Exports ``forge_launch``; not there if ``needs_build``."""
        return self.directory / KERNEL_LIBRARY

    @property
    def glue_library(self) -> Path:
        """Registers the operator; not there if ``needs_build``."""
        return self.directory / GLUE_LIBRARY

    @property
    def kernel_source(self) -> Path:
        return self.directory / KERNEL_SOURCES[self.entry.kernel.backend]

    @property
    def glue_source(self) -> Path:
        return self.directory / GLUE_SOURCE

    @property
    def needs_build(self) -> bool:
        """Sources only, as in ``csrc_generated``."""
        return not {KERNEL_LIBRARY, GLUE_LIBRARY} <= set(self.entry.files)


@dataclass(frozen=True)
class Bad:
    """An entry that cannot be used: a miss, to be moved out of the way."""

    reason: str
    inode: int = 0
    """Of its directory when it was read, so that nobody moves away the good one that replaced it."""
    gone: bool = False
    """It vanished while it was read: nothing to move."""


class _UnusableError(Exception):
    """Internal to this module: why reading stopped."""


T = TypeVar("T")


def read_entry(directory: Path, trust_others: bool) -> AnyEntry | Bad:
    """The record of the entry in ``directory``, strictly decoded and matching the directory's name; not its files.

    trust_others: accept a directory that other users can write to.
    """
    return _guarded(directory, trust_others, _decode)


def fetch_entry(directory: Path, trust_others: bool, known: AnyEntry | None = None) -> StoredEntry | KeptEntry | Bad:
    """The entry in ``directory`` with every file's size and SHA-256 compared.

    known: its record, if it was read before; the name stands for the content, so it need not be read again.
    """
    return _guarded(directory, trust_others, lambda fd, path: _check_files(fd, path, known or _decode(fd, path)))


def file_facts(data: bytes) -> FileFacts:
    """Hash and size of a file's bytes."""
    return FileFacts(hashlib.sha256(data).hexdigest(), len(data))


def check_names(entry: CacheEntry) -> list[str]:
    """What is wrong with the list of files, one line each."""
    names = set(entry.files)
    wrong = [f"unexpected file {name!r}" for name in sorted(names - FILE_NAMES)]
    source = KERNEL_SOURCES.get(entry.kernel.backend)
    if source is None:
        return [*wrong, f"unknown backend {entry.kernel.backend!r}"]
    wrong += [f"no {name}" for name in (source, GLUE_SOURCE) if name not in names]
    if (KERNEL_LIBRARY in names) != (GLUE_LIBRARY in names):
        wrong.append("only one of the two libraries")
    return wrong


def _guarded(directory: Path, trust_others: bool, read: Callable[[int, Path], T]) -> T | Bad:
    """``read(descriptor, directory)``, or why that failed."""
    inode = 0
    try:
        inode = directory.lstat().st_ino
        with _opened_directory(directory, trust_others) as fd:
            return read(fd, directory)
    except FileNotFoundError as error:
        # The whole directory gone is a concurrent prune; a file gone from a directory that is there is damage.
        gone = not directory.exists()
        return Bad("gone" if gone else f"{Path(str(error.filename)).name} is missing", inode, gone)
    except (_UnusableError, RecordError) as error:
        return Bad(_clipped(str(error)), inode)
    except OSError as error:
        return Bad(f"cannot be read: {error.strerror or error}", inode)


def _clipped(reason: str) -> str:
    return reason if len(reason) <= 200 else f"{reason[:197]}..."


@contextmanager
def _opened_directory(directory: Path, trust_others: bool) -> Iterator[int]:
    """A descriptor of a real directory (not a link to one) that only its owner writes to."""
    if directory.is_symlink():
        raise _UnusableError("its directory is a symbolic link")
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        if mode & 0o022 and not trust_others:
            raise _UnusableError(f"other users can write to its directory (mode {mode:04o})")
        yield fd
    finally:
        os.close(fd)


def _read_file(directory_fd: int, name: str, max_bytes: int) -> bytes:
    """The bytes of a regular file; a link, a pipe or a device is refused without opening what it points to."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory_fd)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _UnusableError(f"{name} cannot be opened as a plain file: {error.strerror}") from error
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise _UnusableError(f"{name} is not a plain file")
        if status.st_size > max_bytes:
            raise _UnusableError(f"{name} has {status.st_size} bytes, more than {max_bytes}")
        return file.read(status.st_size + 1)


def _decode(directory_fd: int, directory: Path) -> AnyEntry:
    data = _read_file(directory_fd, ENTRY_FILE, MAX_JSON_BYTES)
    workload = directory.name.rpartition("-")[0]
    if content_name(workload, data) != directory.name:
        raise _UnusableError(f"{ENTRY_FILE} does not match the hash in the entry's name")
    entry = decode_entry(data)
    if entry.workload != workload:
        raise _UnusableError(f"it is for workload {entry.workload}")
    return entry


def decode_entry(data: bytes) -> AnyEntry:
    """The record in the bytes of an ``entry.json``. Raises RecordError if it is not exactly one."""
    try:
        entry: AnyEntry = codec.loads(CacheEntry | KeptEntry, data.decode("utf-8"))
    except (UnicodeDecodeError, RecursionError) as error:
        raise RecordError(f"{ENTRY_FILE} is not readable: {error}") from error
    wrong = check_names(entry) if isinstance(entry, CacheEntry) else []
    if wrong:
        raise RecordError("; ".join(wrong))
    return entry


def _check_files(directory_fd: int, directory: Path, entry: AnyEntry) -> StoredEntry | KeptEntry:
    if isinstance(entry, KeptEntry):
        return entry
    for name, facts in entry.files.items():
        found = file_facts(_read_file(directory_fd, name, MAX_FILE_BYTES))
        if found.size_bytes != facts.size_bytes:
            raise _UnusableError(f"{name} has {found.size_bytes} bytes, recorded {facts.size_bytes}")
        if found.sha256 != facts.sha256:
            raise _UnusableError(f"{name} does not match its recorded hash")
    return StoredEntry(entry, directory)
