"""Moving entries between machines: one archive out, one archive in, and sources out for ``csrc_generated``.

An archive is a gzipped tar: ``manifest.json``, then ``<device>/<problem>/<entry>/<file>``. Import treats it as hostile:
only plain files with exactly such names are read, sizes are bounded before anything is read, nothing is ever
extracted to a path from the archive, and each entry goes through the same checks and the same rename as a put.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from torch_forge.caching.entry import ENTRY_FILE, FILE_NAMES, MAX_FILE_BYTES, MAX_JSON_BYTES, Bad, StoredEntry, decode_entry
from torch_forge.caching.layers import now
from torch_forge.caching.store import DirectoryStore
from torch_forge.caching.upkeep import Located
from torch_forge.errors import CacheError, RecordError
from torch_forge.machine.files import atomic_write
from torch_forge.records import codec
from torch_forge.records.entry import SAFE_NAME, SCHEMA, entry_name

MANIFEST = "manifest.json"
MAX_MEMBERS = 100_000
MAX_ARCHIVE_BYTES = 8 << 30
"""Unpacked; a decompression bomb is refused before it is unpacked."""
MADE_BY = "Archives are made by `torch-forge cache export`; its version must read the same entry format."


@dataclass(frozen=True)
class Manifest:
    """First member of an archive."""

    schema: int
    created: str
    """UTC, ISO 8601."""
    entries: tuple[str, ...]
    """``<device>/<problem>/<entry>``, in order."""


@dataclass(frozen=True)
class Refused:
    """One thing in an archive that was not taken."""

    name: str
    reason: str


@dataclass(frozen=True)
class Imported:
    """What an import did."""

    entries: tuple[str, ...]
    """``<device>/<problem>/<entry>`` now in the cache."""
    other_device: tuple[str, ...]
    """Those of them that do not serve this device; they are kept for the machine that they are for."""
    refused: tuple[Refused, ...]


def export_entries(store: DirectoryStore, chosen: Iterable[Located], target: Path) -> tuple[str, ...]:
    """Write the sound ones of ``chosen`` to the archive ``target``, whole or not at all; their names in it.

    Raises CacheError if the archive cannot be written.
    """
    sound = [(f"{c.device}/{c.problem}/{c.name}", Path(c.directory)) for c in chosen if not isinstance(c.entry, Bad)]
    sound = [(name, directory) for name, directory in sound if not isinstance(store.check(directory), Bad)]
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with tarfile.open(part, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
            _add(tar, MANIFEST, codec.dumps(Manifest(SCHEMA, now(), tuple(name for name, _ in sound))).encode())
            for name, directory in sound:
                for file in sorted(p for p in directory.iterdir() if p.name in FILE_NAMES | {ENTRY_FILE}):
                    _add(tar, f"{name}/{file.name}", file.read_bytes())
        part.replace(target)
    except OSError as error:
        raise CacheError(f"{target} cannot be written: {error.strerror}", advice="Choose another file.") from error
    finally:
        part.unlink(missing_ok=True)
    return tuple(name for name, _ in sound)


def import_entries(store: DirectoryStore, archive: Path, *, device: str = "") -> Imported:
    """Put the entries of an archive into the store. device: ``DeviceInfo.key`` of this machine, if known.

    Raises CacheError if the file is not such an archive or the store cannot be written. Import only what you trust:
    the libraries will run in your processes, and a hash shows that a file is whole, not who made it.
    """
    try:
        with _BoundedGzip(archive) as plain, tarfile.open(fileobj=plain, mode="r:") as tar:
            members, refused = _sorted_members(tar)
            _check_manifest(tar, members.pop(MANIFEST, {}))
            reasons = {name: _take(store, tar, name, files) for name, files in members.items()}
    except (tarfile.TarError, EOFError, zlib.error, OSError, ValueError) as error:
        raise CacheError(f"{archive} cannot be imported: {error}", advice=MADE_BY) from error
    taken = tuple(name for name, reason in reasons.items() if not reason)
    other = tuple(name for name in taken if device and name.split("/")[0] != device)
    return Imported(taken, other, (*refused, *(Refused(name[:200], reason) for name, reason in reasons.items() if reason)))


def ship(stored: StoredEntry, target: Path) -> Path:
    """Write the entry's sources as a folder of ``csrc_generated`` (``target``); the new folder. Raises OSError."""
    sources = {n: (stored.directory / n).read_bytes() for n in stored.entry.files if not n.endswith(".so")}
    facts = {name: stored.entry.files[name] for name in sources}
    entry = decode_entry(codec.dumps(replace(stored.entry, files=facts)).encode())
    folder = target / entry.key.arch / entry.key.problem / entry_name(entry)
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in {**sources, ENTRY_FILE: codec.dumps(entry).encode()}.items():
        atomic_write(folder / name, data)
        (folder / name).chmod(0o644)  # it is going to be committed, not kept private
    return folder


class _BoundedGzip(gzip.GzipFile):
    """Refuses single reads beyond the largest file: tarfile reads extended headers whole, whatever size they claim."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= MAX_FILE_BYTES:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return super().read(size)


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    info.mode = 0o600
    tar.addfile(info, io.BytesIO(data))


Members = dict[str, dict[str, tarfile.TarInfo]]
"""Entry -> file name -> member."""


def _sorted_members(tar: tarfile.TarFile) -> tuple[Members, list[Refused]]:
    """The members that look right, by entry, and what is wrong with the others. Raises CacheError on a bomb."""
    members: Members = {}
    refused: list[Refused] = []
    total = 0
    for count, member in enumerate(tar):
        total += member.size
        if count >= MAX_MEMBERS or total > MAX_ARCHIVE_BYTES:
            raise CacheError(f"the archive holds more than {MAX_MEMBERS} files or {MAX_ARCHIVE_BYTES} bytes", advice="")
        folder, _, file = member.name.rpartition("/")
        reason = _member_reason(member, folder, file)
        if reason:
            refused.append(Refused(member.name[:200], reason))
        else:
            members.setdefault(folder or MANIFEST, {})[file] = member
    return members, refused


def _member_reason(member: tarfile.TarInfo, folder: str, file: str) -> str:
    """Why a member is refused; empty if it is not."""
    if member.type not in {tarfile.REGTYPE, tarfile.AREGTYPE} or member.sparse is not None:
        return "not a plain file"
    if member.name != MANIFEST and not _is_entry_file(folder.split("/"), file):
        return "not a name that an export writes"
    limit = MAX_FILE_BYTES if file in FILE_NAMES else MAX_JSON_BYTES
    return f"{member.size} bytes, more than {limit}" if member.size > limit else ""


def _is_entry_file(folders: list[str], file: str) -> bool:
    return len(folders) == 3 and all(SAFE_NAME.fullmatch(f) for f in folders) and file in FILE_NAMES | {ENTRY_FILE}


def _check_manifest(tar: tarfile.TarFile, files: dict[str, tarfile.TarInfo]) -> None:
    try:
        manifest: Manifest = codec.loads(Manifest, _bytes_of(tar, files[MANIFEST]).decode())
    except (KeyError, UnicodeDecodeError, RecordError) as error:
        raise CacheError("the archive has no valid manifest", advice=MADE_BY) from error
    if manifest.schema != SCHEMA:
        raise CacheError(f"the archive has format {manifest.schema}, this version reads {SCHEMA}", advice=MADE_BY)


def _take(store: DirectoryStore, tar: tarfile.TarFile, name: str, files: dict[str, tarfile.TarInfo]) -> str:
    """Put one entry; why not, or nothing. The name that counts is that of its content, not that in the archive."""
    if ENTRY_FILE not in files:
        return f"no {ENTRY_FILE}"
    try:
        entry = decode_entry(_bytes_of(tar, files[ENTRY_FILE]))
        if name != f"{entry.key.device}/{entry.key.problem}/{entry_name(entry)}":
            return "the content does not match the entry's name"
        store.put(entry, {f: _bytes_of(tar, member) for f, member in files.items() if f != ENTRY_FILE})
    except RecordError as error:
        return str(error)[:200]
    return ""


def _bytes_of(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    return file.read() if file is not None else b""
