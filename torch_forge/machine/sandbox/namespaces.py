"""Namespaces: views of the system in which other processes, the network and shared memory do not exist.

A pid namespace begins with a process's next child, can be begun only once, and ends when its first process does, taking all
others with it. So one process, the gate, enters a user and a pid namespace, in which it has every right; there it begins a
further pid namespace for each task, with an idle first process, and returns to its own.
"""

from __future__ import annotations

import os
import shutil
import signal
import struct

from torch_forge.machine.sandbox.syscalls import call, prctl

_NEW_IPC, _NEW_USER, _NEW_PID, NEW_NET, NEW_MOUNTS = 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x00020000
_NO_NEW_PRIVILEGES, _DROP_BOUNDING, _PDEATHSIG, _DUMPABLE = 38, 24, 1, 4
_CAPABILITIES_VERSION_3 = 0x20080522
_HIGHEST_CAPABILITY = 63


def enter_user() -> None:
    """A user namespace with the same user and group: every right inside, none outside. Raises OSError."""
    user, group = os.geteuid(), os.getegid()
    _unshare(_NEW_USER)
    # Without giving up setgroups, an ordinary user may not map a group. The groups that it has stay effective.
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def enter_pids() -> None:
    """A pid namespace, for this process's children. Raises OSError."""
    _unshare(_NEW_PID)


def enter_network() -> None:
    """A network namespace with a loopback device that is down. Raises OSError."""
    _unshare(NEW_NET)


def enter_ipc() -> None:
    """An empty IPC namespace. Raises OSError."""
    _unshare(_NEW_IPC)


def enter_mounts() -> None:
    """A mount namespace whose changes nobody else sees. Raises OSError."""
    _unshare(NEW_MOUNTS)


class PidNamespaces:
    """Pid namespaces for one child after another of a process that is the first in its own."""

    def __init__(self) -> None:
        """Raises OSError."""
        self._own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._sleep = shutil.which("sleep", path=os.defpath) or shutil.which("sleep")

    def begin(self) -> int:
        """Begin one; the pid of its idle first process. The next child is the second. Raises OSError."""
        _unshare(_NEW_PID)
        try:
            # A few pages in memory; a fork of this process, which has all of torch, takes twenty times as long.
            if self._sleep is not None:
                return os.posix_spawn(self._sleep, ["sleep", "infinity"], {}, file_actions=_no_descriptors())
            if (pid := os.fork()) == 0:
                while True:
                    signal.pause()
            return pid
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        """Further children are in the own namespace again. Raises OSError."""
        call("setns", self._own, _NEW_PID)


def _no_descriptors() -> list[tuple[int, int]]:
    return [(os.POSIX_SPAWN_CLOSE, descriptor) for descriptor in (0, 1, 2)]


def die_with_parent() -> None:
    """SIGKILL when the thread that started this process ends."""
    prctl(_PDEATHSIG, signal.SIGKILL)


def drop_privileges() -> None:
    """No capabilities, and none to be had from any program. Raises OSError.

    For this thread and those it starts, so before there are others.
    """
    prctl(_NO_NEW_PRIVILEGES, 1)
    for capability in range(_HIGHEST_CAPABILITY + 1):
        try:
            prctl(_DROP_BOUNDING, capability)
        except OSError:  # not one that this kernel has, or this process has no right to, and so has not got any
            break
    header = struct.pack("Ii", _CAPABILITIES_VERSION_3, 0)
    call("capset", header, struct.pack("6I", *[0] * 6))


def forbid_dumps() -> None:
    """No core files, and no process of the same user may trace this one or look into its memory. Raises OSError."""
    prctl(_DUMPABLE, 0)


def _unshare(flags: int) -> None:
    call("unshare", flags)


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """``mount(2)``. Raises OSError."""
    call("mount", source.encode(), target.encode(), kind.encode() or None, flags, data.encode() or None)


def set_mount(path: str, attributes: int, *, recursive: bool) -> None:
    """Add attributes (MOUNT_ATTR_*) to a mount, or to all beneath it. Raises OSError."""
    everything = 0x8000 if recursive else 0
    here = -100
    call("mount_setattr", here, path.encode(), everything, struct.pack("4Q", attributes, 0, 0, 0), 32)


def make_root(path: str) -> None:
    """Make the mount at ``path`` the root directory, and drop what was mounted before. Raises OSError."""
    os.chdir(path)
    call("pivot_root", b".", b".")
    detach = 2
    call("umount2", b".", detach)
    os.chdir("/")
