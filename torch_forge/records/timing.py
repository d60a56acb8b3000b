"""How a speed-up was confirmed: what was measured, by which clocks, beside what, and what was demanded of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch_forge.records.outcomes import Comparison, Crashed, Mismatch, Refused, TimedOut

Failure = Mismatch | Crashed | TimedOut | Refused
"""Why a timing does not count; its ``gate`` says which promise was broken."""


@dataclass(frozen=True)
class Interval:
    """A median and the ends of its 95 % interval."""

    middle: float
    low: float
    high: float


@dataclass(frozen=True)
class ClockCheck:
    """What the worker says against what another clock says, both relative to eager, for the same calls."""

    clock: str
    """``judge`` (the judge's own, around whole requests, and another time until all results were fixed by digests) or
    ``wall`` (the worker's, all streams waited for)."""
    excess_us: Interval
    """How much longer a call took by this clock than the worker said, beyond what eager did, in microseconds."""
    slope_us: Interval
    """The same from the difference between requests of K and of 2K calls, free of what a request costs at once."""
    allowed_us: float
    """Above this, at the lower end of either interval, the worker's times are not believed."""

    @property
    def agrees(self) -> bool:
        """Whether neither interval lies above what is allowed."""
        return self.excess_us.low <= self.allowed_us and self.slope_us.low <= self.allowed_us


@dataclass(frozen=True)
class DeviceState:
    """A GPU at one moment, as its driver tells."""

    sm_mhz: float
    memory_mhz: float
    power_w: float
    temperature_c: float
    throttling: tuple[str, ...]
    """Reasons for a lower clock than asked for; empty if there are none."""


@dataclass(frozen=True)
class DeviceLog:
    """The device around the measurement."""

    before: DeviceState | None
    after: DeviceState | None
    default_sm_mhz: float
    """0 where it is not known."""
    slow_rounds: int
    """Rounds at less than three quarters of that clock: thrown away and taken again."""
    missing: str
    """Why nothing is known of the device's clocks, or empty."""


@dataclass(frozen=True)
class TimedSession:
    """One fresh worker process with the candidate in it, measured against eager beside it and in a process of its own."""

    seed: int
    """Names the inputs, together with ``Confirmation.secret``."""
    comparison: Comparison
    """Against eager beside it, or against eager in its own process where that was faster beyond the noise."""
    beside_over_clean: Interval
    """Time of eager beside the candidate over its time in a process without candidate code; about 1."""
    noise: Interval
    """Eager against eager in the same rounds."""
    required_ratio: float
    """``comparison.ratio_low`` must reach this: 3 % or the noise, whichever is more."""
    clocks: tuple[ClockCheck, ...]
    rounds: int
    """All that were taken."""
    kept: int
    """Those that the figures come from."""
    quiet: bool
    """False: threads kept waiting for cores, and the figures are the least disturbed ones."""
    checked_outputs: int
    """Timed calls whose full result was compared."""
    failure: Failure | None = None


@dataclass(frozen=True)
class Confirmation:
    """The whole timing protocol on one config of one candidate."""

    config: int
    comparison: Comparison | None
    """The less favourable of the sessions; None if none came to figures."""
    sessions: tuple[TimedSession, ...]
    calls: int
    """Calls of a short request (K); a long one has twice as many."""
    planned_rounds: int
    """Decided from eager's time alone, before the candidate was loaded."""
    bound_us: float
    """What the caller says no kernel can beat; 0 if nothing is known."""
    secret: int
    """Decides contents, order and which results are looked at, with the seed; made after the candidate was built."""
    device: DeviceLog
    met: tuple[str, ...]
    """Gates that were applied (``records.gates``); the last one may be the one that it failed."""
    missing: Mapping[str, str]
    """Gates, or parts of them, that could not be applied here: name -> why."""
    notes: tuple[str, ...]
    """What a reader should know: close to the bound, busy machine, other processes on the GPU."""
    failure: Failure | None

    @property
    def gate(self) -> str | None:
        """Name of the gate that it failed."""
        return self.failure.gate if self.failure is not None else None

    @property
    def confirmed(self) -> bool:
        """Right when timed, honestly timed, and faster than eager in every session."""
        return self.failure is None
