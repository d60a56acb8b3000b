"""Where a model's time goes, and which regions of its graph are worth a kernel."""

from __future__ import annotations

from dataclasses import dataclass

from torch_forge.records.problem import Problem


@dataclass(frozen=True)
class OpCost:
    """One operation at one set of shapes, over one run of the model."""

    op: str
    """Without overload: ``aten.gelu``."""
    shapes: tuple[tuple[int, ...], ...]
    """Of its tensor arguments, in order."""
    calls: int
    self_us: float
    """Self time on the device, all calls together, in microseconds."""
    module: str
    """Class path of the innermost module, ``LlamaRMSNorm``; empty if unknown."""


@dataclass(frozen=True)
class Profile:
    """One run of a model under the profiler."""

    device: str
    """``DeviceInfo.key``."""
    total_us: float
    """Sum of the self times."""
    wall_us: float
    """Median wall time of one run without the profiler, in microseconds."""
    ops: tuple[OpCost, ...]
    """Most expensive first."""


@dataclass(frozen=True)
class Region:
    """Nodes of a model's graph that one kernel could replace, and what that could gain."""

    problem: Problem
    calls: int
    """How often the same workload occurs in the model."""
    eager_us: float
    """Profiled time of its operations, all calls together."""
    share: float
    """Of the model's device time."""
    bound_us: float
    """All calls at the device's copy bandwidth."""
    module: str

    @property
    def headroom_us(self) -> float:
        """The most that a perfect kernel could gain."""
        return max(0.0, self.eager_us - self.bound_us)


@dataclass(frozen=True)
class LeftAlone:
    """A hot operation or region that gets no kernel, and why."""

    what: str
    share: float
    why: str


@dataclass(frozen=True)
class Selection:
    """Regions in the order in which they should be forged, and what was left."""

    regions: tuple[Region, ...]
    left: tuple[LeftAlone, ...]
