"""Find out which layers work on this machine: put all of them on, try what they forbid, believe only what was refused."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_forge.machine.ended_tasks import TaskDone
from torch_forge.machine.sandbox import lock, syscalls
from torch_forge.records.sandbox import (
    FILES,
    LAYERS,
    LIMITS,
    NETWORK,
    PIDS,
    PRIVILEGES,
    PROC,
    ROOT,
    SECCOMP,
    SIGNALS,
    Confinement,
    SandboxReport,
)

if TYPE_CHECKING:
    from torch_forge.machine.workers import WorkerPool

TASK = f"{__name__}:attempt"
TIMEOUT_S = 60.0
ATTEMPTS = 2
"""A task that was killed on a busy machine must not cost this process its sandbox."""

_guard = threading.Lock()
_reports: list[SandboxReport] = []
"""None or the one of this process."""


def survey(pool: WorkerPool) -> SandboxReport:
    """What works here; a task of ``pool`` finds it out once in the life of this process. Raises WorkerError."""
    with _guard:
        if not _reports:
            _reports.append(_survey(pool))
        return _reports[0]


def _survey(pool: WorkerPool) -> SandboxReport:
    if not syscalls.SUPPORTED:
        return SandboxReport(missing=dict.fromkeys(LAYERS, "only on Linux, on x86-64 or aarch64"))
    missing = dict(pool.namespaces_missing())
    layers = tuple(name for name in LAYERS if name not in missing)
    folder = pool.folder("secret")
    try:
        (folder / "secret").touch()
        payload = {"secret": str(folder / "secret"), "pid": os.getpid()}
        for _ in range(ATTEMPTS):
            outcome = pool.run(TASK, payload, timeout_s=TIMEOUT_S, confine=Confinement(layers, exploring=True))
            if isinstance(outcome, TaskDone):
                break
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if not isinstance(outcome, TaskDone):
        return SandboxReport(missing=dict.fromkeys(LAYERS, f"the task that tries the layers ended with {outcome}"))
    missing = {**outcome.value, **missing}
    shutil.rmtree(outcome.scratch, ignore_errors=True)
    return SandboxReport(tuple(n for n in LAYERS if n not in missing), {n: missing[n] for n in LAYERS if n in missing})


def attempt(payload: dict[str, Any], _scratch: Path) -> dict[str, str]:
    """A task without foreign code. Returns layers that could not be put on, or that let something through, with why."""
    missing = lock.missing_layers()
    for layer, (what, breached) in _breaches(payload["secret"], payload["pid"]).items():
        if layer not in missing and breached():
            missing[layer] = f"it is on, and yet {what}"
    return missing


def _breaches(secret: str, outside: int) -> dict[str, tuple[str, Callable[[], bool]]]:
    """Layer -> what it must not leave possible, in words and as an attempt."""
    return {
        PIDS: ("there is a parent process", lambda: os.getppid() != 0),
        NETWORK: ("there are network devices", lambda: len(Path("/proc/self/net/dev").read_text().splitlines()) > 3),
        ROOT: ("a file outside exists", lambda: os.path.exists(secret)),
        PROC: ("other processes are seen", lambda: sum(name.isdecimal() for name in os.listdir("/proc")) > 2),
        PRIVILEGES: ("there are some", _has_privileges),
        LIMITS: ("core dumps are allowed", lambda: resource.getrlimit(resource.RLIMIT_CORE) != (0, 0)),
        FILES: ("a file outside can be read", lambda: _works(lambda: Path(secret).read_bytes())),
        SIGNALS: ("it can signal others", lambda: _works(lambda: os.kill(outside, 0))),
        SECCOMP: ("sockets or processes can be made", lambda: _works(socket.socket) or _works(_fork)),
    }


def _has_privileges() -> bool:
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    return int(status["NoNewPrivs"]) != 1 or any(int(status[name], 16) for name in ("CapEff", "CapPrm", "CapInh"))


def _works(action: Callable[[], object]) -> bool:
    try:
        action()
    except OSError:
        return False
    return True


def _fork() -> None:
    if os.fork() == 0:
        os._exit(0)
