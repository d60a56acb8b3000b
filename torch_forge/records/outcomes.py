"""What became of a candidate: verdicts, timings, trials. A failure here is a value with its evidence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch_forge.records.kernels import BuildFailed, Built, Candidate, Origin


@dataclass(frozen=True)
class ErrorStats:
    """How far one output is from float64."""

    rms: float
    """Root mean square of the absolute error."""
    worst: float
    """Largest absolute error."""
    worst_index: tuple[int, ...]


@dataclass(frozen=True)
class CaseResult:
    """One test case that was compared."""

    case: str
    """Which inputs: ``normal``, ``wide``, ``special`` ... and the seed."""
    output: int
    candidate: ErrorStats
    eager: ErrorStats
    told_apart: tuple[str, ...] = ()
    """Wrong results, among those that are tried on every case, that would have been rejected on it."""


@dataclass(frozen=True)
class Passed:
    """Right on every case."""

    cases: tuple[CaseResult, ...]


@dataclass(frozen=True)
class Mismatch:
    """Wrong somewhere; the first bad element is the evidence."""

    case: str
    output: int
    index: tuple[int, ...]
    got: float
    expected: float
    """The float64 value."""
    eager: float
    reason: str
    """One line: which rule it broke, with the figures."""
    bad_elements: int
    total_elements: int
    gate: str = "is right"
    """The gate that it failed (``records.gates``)."""


@dataclass(frozen=True)
class Crashed:
    """The worker died: a signal, an abort, an early exit, a CUDA error."""

    signal: int
    """0 if it exited by itself."""
    exit_status: int
    log: str
    gate: str = "survives"
    case: str = ""
    """The test case that was running, where that is known."""


@dataclass(frozen=True)
class TimedOut:
    """No answer within the limit; the worker's process group was killed."""

    limit_s: float
    log: str
    gate: str = "survives"
    case: str = ""
    """The test case that was running, where that is known."""


@dataclass(frozen=True)
class Refused:
    """The candidate's own launch returned an error code, or it broke a static rule."""

    code: int
    reason: str
    gate: str = "launches"


Verdict = Passed | Mismatch | Crashed | TimedOut | Refused


@dataclass(frozen=True)
class Timing:
    """Interleaved measurement of one side."""

    median_us: float
    """Median time of one call, caches flushed before each, in microseconds."""
    low_us: float
    high_us: float
    """95 % confidence interval of the median."""
    samples: int


@dataclass(frozen=True)
class Comparison:
    """Candidate and eager in the same process, in random order, on the same inputs."""

    config: int
    candidate: Timing
    eager: Timing
    ratio: float
    """Median over pairs of eager time / candidate time: above 1, the candidate is faster."""
    ratio_low: float
    """Lower end of its 95 % confidence interval."""
    ratio_high: float


@dataclass(frozen=True)
class Trial:
    """One candidate's whole story."""

    candidate: Candidate
    build: Built | BuildFailed | Crashed | TimedOut | Refused
    """Refused: by what its source or the built object contains, before anything of it ran."""
    verdict: Verdict | None
    """None if it was never run."""
    comparisons: tuple[Comparison, ...]
    """One per config that was timed; empty unless the verdict is Passed."""
    seconds: float
    not_faster: Refused | None = None
    """Right, but the confirmation did not find it faster: why."""

    @property
    def best(self) -> Comparison | None:
        """The fastest config, if the candidate is right."""
        return min(self.comparisons, key=lambda c: c.candidate.median_us, default=None)

    @property
    def doubtful(self) -> bool:
        """Whether the machine may be to blame: a template's kernel, known to be right elsewhere, ran out of time, memory or
        disk. Such a failure decides nothing beyond this run.
        """
        return self.candidate.origin in {Origin.TEMPLATE, Origin.SHIPPED} and (
            _starved(self.build) or _starved(self.verdict)
        )

    @property
    def outcome(self) -> str:
        """One word for counting: ``passed``, ``mismatch``, ``crashed``, ``timed out``, ``refused``, ``not built``."""
        if isinstance(self.build, Refused):
            return "refused"
        if not isinstance(self.build, Built):
            return "not built"
        names: Mapping[type, str] = {
            Passed: "passed", Mismatch: "mismatch", Crashed: "crashed", TimedOut: "timed out", Refused: "refused",
        }  # fmt: skip
        return names[type(self.verdict)] if self.verdict is not None else "not run"


_KILLED = -9
"""Exit status of what got SIGKILL: nobody but the kernel, when memory runs out, or the owner of the machine sends it."""
_EXHAUSTED = re.compile(
    r"No space left on device|Disk quota exceeded|Cannot allocate memory|MemoryError|Too many open files"
)


def _starved(end: Built | BuildFailed | Verdict | None) -> bool:
    match end:
        case TimedOut():
            return True
        case Crashed():
            return end.exit_status == _KILLED or _EXHAUSTED.search(end.log) is not None
        case BuildFailed():
            return end.exit_status == _KILLED
    return False


@dataclass(frozen=True)
class PeerTimings:
    """Eager and ``torch.compile`` for one workload, measured together without any candidate code."""

    eager_us: float
    inductor_us: float | None
    """None where ``torch.compile`` failed or was not asked for."""
    inductor_over_eager: float | None
    """Ratio of medians (below 1: Inductor is faster), from interleaved samples."""
    note: str
    """Why Inductor is missing, or empty."""
