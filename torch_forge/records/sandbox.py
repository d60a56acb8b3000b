"""How a task that runs foreign code is confined, and what of that this machine can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

USER, PIDS, NETWORK, IPC = "user namespace", "pid namespace", "network namespace", "ipc namespace"
ROOT, PROC = "private root", "private /proc"
PRIVILEGES, LIMITS, PROCESSES = "no privileges", "limits", "process limit"
FILES, TCP, SIGNALS = "landlock files", "landlock tcp", "landlock signals"
SECCOMP = "seccomp"

LAYERS: Mapping[str, str] = {
    USER: "no capability outside of itself, even where it runs as root",
    PIDS: "sees no other process, and ends as a whole with all that it has started",
    NETWORK: "no network device, not even loopback",
    IPC: "no shared memory, semaphores or queues of others",
    ROOT: "a file tree with the toolchain, Python and torch, read-only, one scratch folder, and nothing else",
    PROC: "a /proc of its own processes only",
    PRIVILEGES: "no capabilities, no way to gain any by running a program, not to be traced or dumped",
    LIMITS: "bounds on processor time, file size, open files and core dumps",
    PROCESSES: "a bound on processes and threads",
    FILES: "opens nothing outside what the private root shows, by a second mechanism",
    TCP: "neither binds nor connects TCP sockets",
    SIGNALS: "signals nobody outside, reaches no abstract socket outside",
    SECCOMP: "no sockets, tracing, mounts, keyrings, kernel modules, new namespaces; later no new programs either",
}
"""Layer -> what it takes away. In the order in which they are put on."""

MINIMUM = (PIDS, PRIVILEGES, LIMITS, SECCOMP)
"""Without these, source that nobody vouches for is not run at all where the sandbox is required..."""
MINIMUM_FILES = (ROOT, FILES)
"""...nor without one of these."""


@dataclass(frozen=True)
class Confinement:
    """What one task that runs foreign code is held in, and what it needs."""

    layers: tuple[str, ...]
    """All of them, or the task is not run: they were seen to work here."""
    readable: tuple[str, ...] = ()
    """Files and folders beyond the toolchain of the system, Python, torch and CUDA."""
    cuda: bool = False
    """It uses a GPU: gets the device nodes, and starts CUDA before it locks itself down (``sandbox.lock``), as CUDA cannot
    start behind the last layers."""
    compilers: bool = False
    """It may run programs, until it closes that door itself."""
    exploring: bool = False
    """A layer that fails is left out and reported. Only for finding out what there is, never with foreign code."""


@dataclass(frozen=True)
class SandboxReport:
    """Which layers candidate code is held in here; part of every verdict."""

    active: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    """Layer -> why not."""

    @property
    def below_minimum(self) -> tuple[str, ...]:
        """What is missing for source that nobody vouches for; empty if nothing is."""
        files = () if any(name in self.active for name in MINIMUM_FILES) else (" or ".join(MINIMUM_FILES),)
        return (*(name for name in MINIMUM if name not in self.active), *files)
