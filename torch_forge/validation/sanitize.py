"""The gate "sanitizers": the kernel alone in a process, under tools that see each access, on a few small cases.

On a CPU the candidate's source is built once more, with AddressSanitizer and UndefinedBehaviorSanitizer; on a GPU the very
library that was built runs under four tools of compute-sanitizer. ``include/forge_driver.cpp`` launches it: no Python, no
torch, every buffer as large as its tensor. What is not seen: uninitialised reads on a CPU (the gate "writes everything" has
its own means), races between CPU threads (ThreadSanitizer takes GCC's OpenMP runtime, which it cannot look into, for a race
at every barrier), races in a GPU's global memory.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from torch_forge.machine.files import private_dir, remove_tree
from torch_forge.machine.toolchain import Toolchain
from torch_forge.machine.workers import TaskDied, TaskDone, TaskExpired, WorkerPool
from torch_forge.records.kernels import Built
from torch_forge.records.outcomes import Crashed, Refused, TimedOut
from torch_forge.records.sandbox import FILES, NETWORK, SECCOMP, SIGNALS, TCP, Confinement
from torch_forge.validation.sanitizer_commands import (
    ENVIRONMENT,
    Commands,
    SanitizerRun,
    device_commands,
    host_commands,
    write_run,
)
from torch_forge.validation.sanitizer_verdict import GATE, Finding, of_builds, of_tool

__all__ = ["SanitizerReport", "SanitizerRun", "sanitize"]

TASK = "torch_forge.validation.sanitize_tasks:check"
GRACE_S = 10.0
"""The worker ends its commands at the limit; this much later it is ended itself."""
OUTSIDE = frozenset({NETWORK, TCP, SECCOMP, FILES, SIGNALS})
"""Layers that compute-sanitizer is not held in: it talks to what it watches over a socket, and CUDA starts in a program of
its own, behind all that is put on."""
AWARE = re.compile(
    r"\b(_*(no_sanitize|no_address_safety|disable_sanitizer)\w*|__SANITIZE_\w+|__(asan|ubsan|sanitizer)_\w+"
    r"|(address|undefined_behavior)_sanitizer)\b"
)
"""Words with which a source looks for a sanitizer or switches it off."""


@dataclass(frozen=True)
class SanitizerReport:
    """What the sanitizers say of one config."""

    tools: tuple[str, ...]
    """Those that saw every case and found nothing."""
    missing: Mapping[str, str]
    """Those that could not be used, or not to the end -> why. Neither for nor against the candidate."""
    finding: Finding | None
    """The first thing that was found."""
    seconds: float
    """Wall time of all builds and runs."""


DETACHED = "before first instrumented API call"
"""A tool did not find what it is to watch, which is neither's fault."""


def sanitize(
    built: Built,
    config: int,
    runs: Sequence[SanitizerRun],
    *,
    toolchain: Toolchain,
    pool: WorkerPool,
    staging_root: Path,
    timeout_s: float,
    device: torch.device,
) -> SanitizerReport:
    """Run one config on ``runs``, smallest first, under every sanitizer of its backend, side by side.

    A misaligned case is run with config 0, as an installed kernel does.
    timeout_s: for everything, builds included. TimedOut is a kernel that did not finish a single launch; one that did not
    come through all runs makes the tool ``missing``. compute-sanitizer needs more than the whole
    sandbox allows (``OUTSIDE``), so where that is required those tools are missing.
    Raises SandboxError as ``WorkerPool.run`` does.
    """
    candidate = built.candidate
    if word := AWARE.search(candidate.source.replace("\\\n", "")):
        return SanitizerReport((), {}, Refused(0, f"its source says {word[0]}, which is about sanitizers", GATE), 0.0)
    runs = sorted(runs, key=lambda run: run.nbytes)
    held = _Bay(built, config, tuple(runs), toolchain, pool, staging_root, timeout_s, device)
    report = held.run()
    detached = any(DETACHED in why for why in report.missing.values())
    return held.run() if detached and report.finding is None else report


@dataclass(frozen=True)
class _Bay:
    """One config, its cases, and where they are looked at."""

    built: Built
    config: int
    runs: tuple[SanitizerRun, ...]
    toolchain: Toolchain
    pool: WorkerPool
    staging_root: Path
    timeout_s: float
    device: torch.device

    def run(self) -> SanitizerReport:
        """Once, with all tools."""
        cuda = self.built.candidate.backend == "cuda"
        scratch = Path(tempfile.mkdtemp(prefix="torch_forge-sanitize-", dir=private_dir(self.staging_root).absolute()))
        try:
            commands = self._commands(scratch, cuda)
            if not commands.tools:
                return SanitizerReport((), commands.missing, None, 0.0)
            payload = {"builds": commands.builds, "tools": commands.tools, "limit_s": self.timeout_s}
            confine = _confinement(self.pool, self.toolchain, commands, cuda=cuda)
            limit_s = self.timeout_s + GRACE_S
            outcome = self.pool.run(TASK, payload, timeout_s=limit_s, env=ENVIRONMENT, scratch=scratch, confine=confine)
        finally:
            remove_tree(scratch)
        if isinstance(outcome, TaskDone):
            return _weighed(outcome, commands, tuple(run.case.name for run in self.runs), self.timeout_s)
        return _without_answer(outcome, commands)

    def _commands(self, scratch: Path, cuda: bool) -> Commands:
        candidate = self.built.candidate
        files = [f"run{k}.bin" for k in range(len(self.runs))]
        for name, run in zip(files, self.runs, strict=True):
            used = 0 if run.case.misaligned else self.config
            write_run(scratch / name, run, config=used, workspace_bytes=candidate.workspace_bytes)
        if not cuda:
            (scratch / "kernel.cpp").write_text(candidate.source)
            return host_commands(self.toolchain, files)
        commands = device_commands(self.built.library, self.toolchain, files, self.device.index or 0)
        if commands.tools and self.pool.sandbox_required:
            return Commands(missing=dict.fromkeys(commands.tools, "it cannot work in the sandbox that is required"))
        return commands


def _confinement(pool: WorkerPool, toolchain: Toolchain, commands: Commands, *, cuda: bool) -> Confinement | None:
    """As for a build: what is watched runs in a process that the task starts, so starting programs stays allowed."""
    confine = pool.confinement(cuda=cuda, compilers=True, readable=(*toolchain.readable, *commands.readable))
    if confine is None or not cuda:
        return confine
    return replace(confine, layers=tuple(layer for layer in confine.layers if layer not in OUTSIDE))


def _weighed(outcome: TaskDone, commands: Commands, cases: tuple[str, ...], limit_s: float) -> SanitizerReport:
    builds, tools = outcome.value["builds"], outcome.value["tools"]
    answers: dict[str, Finding | str | None] = {}
    for name in commands.tools:
        # What stopped a build stopped every tool.
        answers[name] = of_tool(name, tools[name], cases, limit_s) if name in tools else of_builds(builds, limit_s)
    return SanitizerReport(
        tools=tuple(name for name, answer in answers.items() if answer is None),
        missing={name: answer for name, answer in answers.items() if isinstance(answer, str)},
        finding=next((answer for answer in answers.values() if answer is not None and not isinstance(answer, str)), None),
        seconds=outcome.seconds,
    )


def _without_answer(outcome: TaskDied | TaskExpired, commands: Commands) -> SanitizerReport:
    if isinstance(outcome, TaskExpired):
        return SanitizerReport((), {}, TimedOut(outcome.limit_s, outcome.log, GATE), outcome.limit_s)
    if outcome.exception:  # our own task could not do its work
        return SanitizerReport((), dict.fromkeys(commands.tools, outcome.exception), None, outcome.seconds)
    return SanitizerReport((), {}, Crashed(outcome.signal, outcome.exit_status, outcome.log, GATE), outcome.seconds)
