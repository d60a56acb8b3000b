"""From a plan to a built kernel: Plan, Candidate, Certificate, Built, BuildFailed."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch_forge.records.codec import digest
from torch_forge.records.program import Lowered
from torch_forge.records.tensors import TensorSpec


class Origin(enum.Enum):
    """Who wrote a kernel."""

    TEMPLATE = "template"
    LLM = "llm"
    SHIPPED = "shipped"
    USER = "user"


@dataclass(frozen=True)
class Plan:
    """What to do about one problem on one device, with the reasons."""

    problem: str
    """``Problem.digest``."""
    pattern: str
    """``pointwise``, ``row``, ``reduction``, ``matrix`` ..."""
    bytes_moved: int
    """Lower bound of device memory traffic, in bytes."""
    flops: int
    """Floating-point operations, transcendental ones counted as one."""
    bound: str
    """``memory``, ``compute`` or ``latency``."""
    bound_us: float
    """No kernel on this device can be faster, in microseconds."""
    target_us: float
    """The time the plan sets out to reach."""
    lowered: Lowered | None
    """The loop form, where a template can serve the problem."""
    steps: tuple[str, ...]
    """What to do, in order, each with its reason; for the report and for an LLM's prompt."""


@dataclass(frozen=True)
class Config:
    """One choice of launch parameters compiled into a kernel; ``forge_launch`` selects it by position."""

    params: Mapping[str, int]
    """For instance ``{"threads": 256, "vector": 8, "rows_per_block": 1}``."""
    align_bytes: int
    """Every tensor's data pointer must be a multiple of this; at least the largest element size counts."""


@dataclass(frozen=True)
class Candidate:
    """One source file under the entry-point contract (``docs/architecture.md``), not yet built."""

    problem: str
    """``Problem.digest``."""
    name: str
    """``Problem.name``."""
    backend: str
    """``cuda`` or ``cpu``."""
    source: str
    origin: Origin
    author: str
    """Template name (``row``, ``pointwise``) or model name."""
    configs: tuple[Config, ...]
    """Config 0 must work at element alignment; at least one."""
    statics: Mapping[str, int] = field(default_factory=dict)
    """Parameters compiled in as constants; part of what the kernel may be used for."""
    program: str | None = None
    """``Program.digest``, for a kernel that serves every binding of that program; None: the exact workload only."""
    workspace_bytes: int = 0
    """Scratch memory that each launch needs."""
    any_size: bool = False
    """Without a program: whether it claims to serve the problem at other sizes too, ``dims[]`` being those inputs' sizes."""
    call: Mapping[str, Any] | None = None
    """For a Python candidate: how its arguments are made of the problem's inputs (``graphs.subjects``)."""

    @cached_property
    def digest(self) -> str:
        """Identity: backend, source and configs."""
        return digest((self.backend, self.source, self.configs, self.statics, self.program))


@dataclass(frozen=True)
class Built:
    """A candidate as a shared library that exports ``forge_launch``."""

    candidate: Candidate
    library: str
    """Path of the shared library."""
    library_sha256: str
    seconds: float
    """Wall time of the build."""
    resources: Mapping[str, int]
    """From the compiler: ``registers``, ``smem_bytes``, ``spill_bytes`` where it tells; empty on the CPU."""


@dataclass(frozen=True)
class BuildFailed:
    """The compiler refused the candidate."""

    candidate: Candidate
    command: tuple[str, ...]
    exit_status: int
    """Negative: killed by that signal."""
    log: str
    """All of it; whoever shows it shortens it."""
    seconds: float


@dataclass(frozen=True)
class Binding:
    """One exact case a kernel is installed for: what it checks, what it allocates, what it passes."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    dims: tuple[int, ...]
    """Values for ``dims[]``: ``Lowered.values`` for a template's kernel; else every input size in order."""
    config: int
    """The fastest config."""
    align_bytes: int
    """Data pointers not multiples of this use ``fallback_config``."""
    fallback_config: int
    workspace_bytes: int


@dataclass(frozen=True)
class Certificate:
    """What a kernel was verified for; a predicate, so that one kernel serves a class of shapes."""

    problem: str
    policy: str
    """A value of ``Policy``."""
    program: str | None
    """Serves any workload whose lowered program has this digest, within the two fields below; None: ``workloads`` only."""
    statics: Mapping[str, int]
    """Parameters that must have exactly this value."""
    max_numel: int
    """No tensor may span more elements (32-bit indexing)."""
    workloads: tuple[str, ...]
    """``Problem.workload`` of each case that was run and compared."""

    def reasons_against(self, workload: str, lowered: Lowered | None, largest_span: int) -> list[str]:
        """Why this kernel may not serve a workload; empty if it may."""
        if workload in self.workloads:
            return []
        if self.program is None or lowered is None:
            return ["verified only for the exact shapes it was tuned on"]
        if lowered.program.digest != self.program:
            return ["the loop form differs (layout or structure)"]
        reasons = [
            f"{name} is {lowered.value(name)}, compiled for {value}"
            for name, value in self.statics.items()
            if lowered.value(name) != value
        ]
        if largest_span > self.max_numel:
            reasons.append(f"{largest_span} elements: more than the {self.max_numel} this kernel can index")
        return reasons
