"""The story of one tuning run: what was tried for each region, what was installed, what it brought."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch_forge.records.device import DeviceInfo
from torch_forge.records.outcomes import ErrorStats
from torch_forge.records.profile import LeftAlone


@dataclass(frozen=True)
class RegionResult:
    """One region after tuning."""

    name: str
    problem: str
    """``Problem.digest``."""
    workload: str
    calls: int
    share: float
    eager_us: float
    """One call, measured beside the kernel."""
    inductor_us: float | None
    forge_us: float | None
    """The best right candidate; None if there was none."""
    bound_us: float
    verdict: str
    """``installed``, ``kept`` (eager or torch.compile is as fast) or ``failed`` (no right candidate)."""
    why: str
    """One line: the deciding figures, or what failed."""
    origin: str
    """A value of ``Origin``, or empty."""
    error: ErrorStats | None
    """Of the kernel against float64 on the tuned shape."""
    eager_error: ErrorStats | None
    from_cache: bool
    outcomes: Mapping[str, int]
    """Candidates by outcome."""
    seconds: float


@dataclass(frozen=True)
class ModelCheck:
    """The whole model, before and after."""

    eager_ms: float
    forge_ms: float
    speedup: float
    """Median over interleaved pairs of eager time / forged time."""
    speedup_low: float
    speedup_high: float
    """95 % confidence interval."""
    output_error: float
    """Worst over outputs: RMS error of the forged model against the higher-precision run, divided by eager's own."""
    engaged: int
    """Calls of forged kernels in one run of the model."""
    accepted: bool
    why: str


@dataclass(frozen=True)
class SessionReport:
    """Everything a report shows."""

    model: str
    """Class name."""
    device: DeviceInfo
    versions: Mapping[str, str]
    """``torch``, ``torch_forge``, ``python``, compiler."""
    date: str
    """UTC, ISO 8601."""
    policy: str
    regions: tuple[RegionResult, ...]
    left: tuple[LeftAlone, ...]
    check: ModelCheck | None
    """None if nothing was installed."""
    stage_seconds: Mapping[str, float]
    """Wall time by stage: ``profile``, ``capture``, ``forge``, ``install``, ``check``."""
    notes: tuple[str, ...]
    """Warnings: no compiler, budget spent, interrupted ..."""
    complete: bool
    """False if the budget ended or the user interrupted before every region was tried."""
