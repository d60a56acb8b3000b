"""From raw samples to figures with an uncertainty: medians, and bootstrap intervals with a fixed seed.

Speedups come from pairs: eager and candidate were timed next to each other in the same round, so a clock that drifts moves
both and leaves their ratio. No sample is thrown away for being slow; rounds in which the process waited for a core are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from torch_forge.errors import UsageError
from torch_forge.records.outcomes import Comparison, Timing

if TYPE_CHECKING:
    import numpy as np

RESAMPLES = 1000
MIN_QUIET = 5
"""Rounds without disturbance that are enough to go by."""
QUIET = 0.1
"""Most time waited per time spent in a quiet round."""
_WAITED_US = 50.0
"""Samples shorter than this count as so long: taking the measurements costs a few switches."""
_SEED = 20_240_229


def median_interval(samples: Sequence[float], *, confidence: float = 0.95) -> tuple[float, float, float]:
    """Median and the ends of its bootstrap interval. Raises UsageError on no samples."""
    import numpy as np

    medians = _resampled_medians(samples, _SEED)
    return _interval(float(np.median(samples)), medians, confidence)


def gap_interval(
    longer: Sequence[float], shorter: Sequence[float], *, confidence: float = 0.95
) -> tuple[float, float, float]:
    """Median of one group minus that of another, and the ends of its interval. Raises UsageError on no samples."""
    import numpy as np

    gaps = _resampled_medians(longer, _SEED) - _resampled_medians(shorter, _SEED + 1)
    return _interval(float(np.median(longer) - np.median(shorter)), gaps, confidence)


def _resampled_medians(samples: Sequence[float], seed: int) -> np.ndarray[Any, Any]:
    import numpy as np

    values = np.asarray(samples, dtype=float)
    if values.size == 0 or not np.all(np.isfinite(values)):
        raise UsageError("a median needs at least one sample, all finite")
    picked = np.random.default_rng(seed).integers(0, values.size, (RESAMPLES, values.size))
    medians: np.ndarray[Any, Any] = np.median(values[picked], axis=1)
    return medians


def _interval(middle: float, resampled: np.ndarray[Any, Any], confidence: float) -> tuple[float, float, float]:
    import numpy as np

    tail = (1 - confidence) / 2
    low, high = np.quantile(resampled, (tail, 1 - tail))
    return middle, min(float(low), middle), max(float(high), middle)


@dataclass(frozen=True, slots=True)
class Round:
    """Every side timed once, one after the other, on the same input sets."""

    us: Mapping[str, float]
    """Side -> microseconds of one call. A side that is hopelessly slow is missing from later rounds."""
    spent_us: Mapping[str, float]
    """Side -> length of its whole sample."""
    waited_us: Mapping[str, float]
    """Side -> time that threads were ready to run meanwhile and found no core free; 0 where that is not known."""

    def disturbance(self, sides: Collection[str]) -> float:
        """Time waited per time spent, of the side that fared worst."""
        return max(disturbance(self.waited_us[s], self.spent_us[s]) for s in sides)


def disturbance(waited_us: float, spent_us: float) -> float:
    """Time waited per time spent."""
    return waited_us / max(spent_us, _WAITED_US)


class Disturbed(Protocol):
    """What was measured while other processes may have been in the way."""

    def disturbance(self, sides: Collection[str]) -> float: ...


AnyRound = TypeVar("AnyRound", bound=Disturbed)


def quiet_rounds(rounds: Sequence[AnyRound], sides: Collection[str], least: int = MIN_QUIET) -> tuple[list[AnyRound], bool]:
    """The rounds to go by for these sides, and whether they were quiet: all quiet ones if there are ``least``, else the
    quietest quarter.

    One thread that other processes keep from its core makes a parallel region as long as a turn of the scheduler.
    """
    quiet = [r for r in rounds if r.disturbance(sides) <= QUIET]
    if len(quiet) >= min(least, len(rounds)):
        return quiet, True
    least = max(least, len(rounds) // 4)
    return sorted(rounds, key=lambda r: r.disturbance(sides))[:least], False


def timing(samples_us: Sequence[float]) -> Timing:
    """Median with interval of one side, in microseconds."""
    middle, low, high = median_interval(samples_us)
    return Timing(middle, low, high, len(samples_us))


def paired(config: int, eager_us: Sequence[float], candidate_us: Sequence[float]) -> Comparison:
    """Both sides of the same rounds. Raises UsageError if their numbers differ."""
    ratios = _ratios(eager_us, candidate_us)
    ratio, low, high = median_interval(ratios.tolist())
    return Comparison(config, timing(candidate_us), timing(eager_us), ratio, low, high)


def speedup(before: Sequence[float], after: Sequence[float]) -> tuple[float, float, float]:
    """Median of the pairs' before / after, and the ends of its interval."""
    return median_interval(_ratios(before, after).tolist())


def _ratios(before: Sequence[float], after: Sequence[float]) -> np.ndarray[Any, Any]:
    import numpy as np

    if len(before) != len(after):
        raise UsageError(f"{len(before)} samples before and {len(after)} after are no pairs")
    # The clock's resolution is the least that a sample can be.
    ratios: np.ndarray[Any, Any] = np.asarray(before, dtype=float) / np.maximum(np.asarray(after, dtype=float), 1e-3)
    return ratios
