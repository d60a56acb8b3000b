"""What every search needs, opened once: settings, device, compilers, workers, cache, registry, progress.

A missing compiler is not an error here: the workshop says so once and serves from the cache only.
"""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from torch_forge.caching.layers import Cache
from torch_forge.dispatch.registry import Registry
from torch_forge.errors import CacheError, ForgeError, SandboxError, ToolchainError
from torch_forge.knowledge.locate import data_dir
from torch_forge.machine.device import device_info
from torch_forge.machine.toolchain import Toolchain, find_toolchain
from torch_forge.machine.workers import WorkerPool
from torch_forge.records.device import DeviceInfo
from torch_forge.records.entry import CacheKey, Environment
from torch_forge.records.problem import Policy, Problem
from torch_forge.report.progress import Progress, QuietProgress
from torch_forge.settings import Settings
from torch_forge.version import __version__

T = TypeVar("T")
log = logging.getLogger("torch_forge")

PRELOADED = (
    "torch_forge.validation.tasks", "torch_forge.benchmarking.tasks", "torch_forge.benchmarking.session_tasks",
    "torch_forge.compilation.tasks", "torch_forge.graphs.execute",
)  # fmt: skip
"""What the parent of all workers imports before it forks."""

REGISTRY = Registry()
"""Operators in use in this process, over all workshops."""


@dataclass
class Workshop:
    """One device and everything needed to forge for it. Use as a context manager, or ``close()`` it."""

    settings: Settings
    device: DeviceInfo
    policy: Policy
    toolchain: Toolchain | None
    """None: nothing can be built here; ``notes`` says why."""
    cache: Cache | None
    """None where the cache is switched off or cannot be trusted."""
    pool: WorkerPool
    progress: Progress
    registry: Registry = REGISTRY
    notes: list[str] = field(default_factory=list)
    _proven: bool = False

    @classmethod
    def open(
        cls, device: str, settings: Settings, *, policy: Policy = Policy.EAGER_EQUIVALENT, progress: Progress | None = None
    ) -> Workshop:
        """Look at the machine. Raises DeviceError; under ``strict`` also ToolchainError and CacheError."""
        info = device_info(device, settings)
        notes: list[str] = []
        toolchain = _or_note(lambda: find_toolchain(settings, info.type, info, check=False), ToolchainError, settings, notes)
        cache = None
        if not settings.skip_cache:
            shipped = data_dir("csrc_generated")
            cache = _or_note(
                lambda: Cache(settings, shipped=shipped, environment=environment(info)), CacheError, settings, notes
            )
        return cls(
            settings,
            info,
            policy,
            toolchain,
            cache,
            WorkerPool(preload=PRELOADED, sandbox=settings.sandbox),
            progress or QuietProgress(),
            notes=notes,
        )

    @cached_property
    def staging(self) -> Path:
        """Where builds go; made when it is first asked for, so that a warm start needs no room on the disk."""
        return self.pool.folder("build")

    def can_build(self) -> bool:
        """Whether the compilers work: asked before the first build, by a build, so that a warm start does not pay for it.

        False leaves one warning and a note; under ``strict`` it is ToolchainError.
        """
        if self.toolchain is not None and not self._proven:
            self.pool.start()  # importing torch there takes seconds: begin now
            self.toolchain = _or_note(
                lambda: find_toolchain(self.settings, self.device.type, self.device),
                ToolchainError,
                self.settings,
                self.notes,
            )
            self._proven = True
        return self.toolchain is not None

    def demand_sandbox(self) -> None:
        """For source that nobody vouches for. Raises SandboxError where this machine cannot confine it as it must be."""
        lacking = self.pool.sandbox_report().below_minimum if self.settings.sandbox != "off" else ()
        if lacking:
            raise SandboxError(f"kernels that a model wrote are not run here: the sandbox lacks {', '.join(lacking)}")

    def key(self, problem: Problem) -> CacheKey:
        """Where this machine keeps what it knows of a problem."""
        return CacheKey.of(problem, self.device, compiler=self.compiler, march=self.settings.march)

    @property
    def compiler(self) -> str:
        """Identity of the compilers, empty without any."""
        if self.toolchain is None:
            return ""
        host = self.toolchain.cxx_version
        return host if self.device.type == "cpu" else f"nvcc {self.toolchain.nvcc_version} + {host}"

    def close(self) -> None:
        """End the workers and drop what was not installed."""
        self.pool.close()

    def __enter__(self) -> Workshop:  # noqa: PYI034 (Self needs Python 3.11)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _or_note(make: Callable[[], T], expected: type[ForgeError], settings: Settings, notes: list[str]) -> T | None:
    """The value, or None with one warning and a note in the report; under ``strict`` the error itself."""
    try:
        return make()
    except expected as error:
        if settings.strict:
            raise
        message = error.explain()
        log.warning("%s", message)
        notes.append(message)
        return None


def environment(device: DeviceInfo) -> Environment:
    """Where entries of this process are made."""
    import torch

    return Environment(__version__, torch.__version__, platform.python_version(), device.name, "")


@dataclass(frozen=True)
class Deadline:
    """A moment after which nothing new is begun."""

    at_s: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        return cls(time.monotonic() + seconds)

    @property
    def left_s(self) -> float:
        return max(0.0, self.at_s - time.monotonic())

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self.at_s

    def within(self, seconds: float) -> Deadline:
        """The earlier of this and ``seconds`` from now."""
        return Deadline(min(self.at_s, time.monotonic() + seconds))
