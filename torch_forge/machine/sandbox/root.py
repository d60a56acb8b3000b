"""A file tree in which only what a confined task needs exists: everything read-only but one scratch folder.

It holds for all threads, those that CUDA starts too, which Landlock cannot reach afterwards.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from torch_forge.machine.sandbox.namespaces import enter_mounts, make_root, mount, set_mount

_NOSUID, _NODEV, _NOEXEC, _BIND, _RECURSIVE, _SLAVE = 2, 4, 8, 1 << 12, 1 << 14, 1 << 19
_READ_ONLY, _NO_SETUID = 1, 2
SHARED_MEMORY = "/dev/shm"  # noqa: S108 -- a file system of the task's own is mounted there
_SHARED_MEMORY_OPTIONS = "size=2g,mode=1777"
_EMPTY = "/tmp"  # noqa: S108 -- programs expect it to exist
_DESCRIPTORS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}


_SYSTEM_FILES = ("sys", "sysrq-trigger", "irq", "bus", "acpi", "scsi")
"""In ``/proc``, about the machine. Root may write there by its user number alone, capabilities or not."""


def enter_root(scratch: str, readable: Iterable[str], devices: Iterable[str], *, own_proc: bool, max_pids: int) -> str:
    """Move to a tree of ``readable``, ``devices`` and the writable ``scratch``; all keep their names.

    max_pids: how many processes and threads there may be in this pid namespace, 0 where it is not to be said.
    Returns why ``/proc`` is still everybody's, if it was to be the task's own and cannot be. Raises OSError.
    """
    enter_mounts()
    mount("", "/", flags=_RECURSIVE | _SLAVE)
    # Opened before a tree covers the scratch folder, from where all of it is put together.
    sources = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in (*readable, *devices, "/proc", scratch)}
    try:
        mount("tmpfs", scratch, "tmpfs", _NOSUID | _NODEV, "size=1m,mode=0755")
        tree = _Tree(scratch)
        for path in (*readable, *devices):
            tree.show(path, sources[path])
        place = tree.folder(scratch)
        for name in (SHARED_MEMORY, _EMPTY, "/proc"):
            tree.folder(name)
        for name, target in _DESCRIPTORS.items():
            os.symlink(target, f"{scratch}/dev/{name}")
        set_mount(scratch, _READ_ONLY | _NO_SETUID, recursive=True)
        mount("tmpfs", scratch + SHARED_MEMORY, "tmpfs", _NOSUID | _NODEV, _SHARED_MEMORY_OPTIONS)
        why = _proc(f"{scratch}/proc", sources["/proc"], own_proc)
        if max_pids and not why:
            with open(f"{scratch}/proc/sys/kernel/pid_max", "w") as file:
                file.write(str(max_pids))
        _protect(f"{scratch}/proc")
        _bind(sources[scratch], place, _BIND)  # without what is mounted on it, which is this tree
        make_root(scratch)
    finally:
        for descriptor in sources.values():
            os.close(descriptor)
    return why


def _proc(place: str, shared: int, own: bool) -> str:
    why = ""
    if own:
        try:
            mount("proc", place, "proc", _NOSUID | _NODEV | _NOEXEC)
            return ""
        except OSError as error:
            why = error.strerror or str(error)
    _bind(shared, place)
    return why


def _protect(proc: str) -> None:
    for name in _SYSTEM_FILES:
        path = f"{proc}/{name}"
        if os.path.exists(path):
            mount(path, path, flags=_BIND | _RECURSIVE)
            set_mount(path, _READ_ONLY | _NO_SETUID, recursive=True)


class _Tree:
    """The new tree while it is put together."""

    def __init__(self, top: str) -> None:
        self._top = top
        self._shown: list[str] = []

    def show(self, path: str, source: int) -> None:
        """Make ``path`` appear, with every link on the way to it."""
        while link := _first_link(path):
            with contextlib.suppress(FileExistsError):
                os.symlink(os.readlink(link), os.path.join(self.folder(os.path.dirname(link)), os.path.basename(link)))
            path = os.path.normpath(os.path.join(os.path.dirname(link), os.readlink(link)) + path.removeprefix(link))
        if any(f"{path}/".startswith(f"{shown}/") for shown in self._shown):
            return
        self._shown.append(path)
        _bind(source, self.folder(path) if os.path.isdir(path) else self._file(path))

    def folder(self, path: str) -> str:
        """The place of a folder, made where it is not shown already. Raises OSError."""
        place = self._top + path
        os.makedirs(place, exist_ok=True)
        return place

    def _file(self, path: str) -> str:
        place = os.path.join(self.folder(os.path.dirname(path)), os.path.basename(path))
        os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        return place


def _first_link(path: str) -> str:
    """The outermost part of the path that is a link; empty if none is."""
    parts = path.strip("/").split("/")
    names = ("/" + "/".join(parts[: n + 1]) for n in range(len(parts)))
    return next((name for name in names if os.path.islink(name)), "")


def _bind(source: int, place: str, flags: int = _BIND | _RECURSIVE) -> None:
    mount(f"/proc/self/fd/{source}", place, flags=flags)
