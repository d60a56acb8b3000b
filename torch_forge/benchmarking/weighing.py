"""What the rounds of one session amount to: does the worker's clock hold, was eager treated fairly, is the candidate faster?

Four sides took turns: eager in a process of its own (``clean``), eager beside the candidate twice (``eager``, ``twin``) and
the candidate. Every question is answered by pairs from the same round, and every demand is set against what the
same question answers for eager against eager.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch_forge.benchmarking.remote import Sample
from torch_forge.benchmarking.stats import disturbance, gap_interval, median_interval, paired, quiet_rounds, speedup
from torch_forge.records.outcomes import Comparison, Refused
from torch_forge.records.timing import ClockCheck, Failure, Interval, TimedSession

CLEAN, EAGER, TWIN, CANDIDATE = "clean", "eager", "twin", "candidate"
SIDES = (CLEAN, EAGER, TWIN, CANDIDATE)
MARGIN = 0.03
"""Faster by less is nobody's gain, however surely it was measured."""
_UNFAIR = 0.10
"""Eager beside the candidate may be this much slower than alone: two processes are never placed alike in memory."""
_DISAGREEMENT = 0.10
"""Clocks may differ by this share of a call ..."""
_CALL_US, _SAMPLE_US = 0.5, 20.0
"""... and by so many microseconds of a call and of a request: what was just written is read faster than what was not."""
_READINGS = 2.0
"""Results may be in the caches for one side and not for the other when they are read."""
_LEAST = 8
"""Rounds that figures come from: of five, an interval is little else than the least and the greatest."""
_ENOUGH = 4
"""Rounds that a clock is judged by, at least."""
IMPOSSIBLE, DOUBTFUL = 0.5, 0.9
"""Times the bound: below the first no time is believed, below the second it is remarked upon."""


@dataclass(frozen=True, slots=True)
class Taken:
    """One round."""

    calls: int
    samples: Mapping[str, Sample]

    def disturbance(self, sides: Collection[str]) -> float:
        """Time waited per time spent, of the side that fared worst."""
        return max(disturbance(self.samples[s].waited_us, self.samples[s].judge_us) for s in sides)


@dataclass(frozen=True, slots=True)
class Terms:
    """What a session is weighed by."""

    config: int
    short_calls: int
    """Calls of a short request (K); long ones have twice as many."""
    bound_us: float
    results_us: float
    """Time to read the results of one call from memory."""
    device: str
    """``cpu`` or ``cuda``."""
    off: frozenset[str]
    """Gates that are left out."""


def weigh(rounds: Sequence[Taken], terms: Terms, *, seed: int, checked: int) -> TimedSession:
    """Figures and verdict of one session; the first gate that fails, in their order, is the failure."""
    kept, quiet = quiet_rounds(rounds, SIDES, _LEAST)
    us = {side: [r.samples[side].call_us for r in kept] for side in SIDES}
    noise = Interval(*speedup(us[EAGER], us[TWIN]))
    fair = Interval(*speedup(us[EAGER], us[CLEAN]))
    spread = max(noise.high - 1, 1 / noise.low - 1)
    slowed = "fair baseline" not in terms.off and fair.low > 1 + spread
    comparison = paired(terms.config, us[CLEAN if slowed else EAGER], us[CANDIDATE])
    clocks = tuple(_clock_checks(kept, terms))
    required = 1 + max(MARGIN, spread)
    failures = {
        "clocks agree": _clock_failure(clocks, comparison),
        "fair baseline": _unfair(fair, spread),
        "possible": _impossible(comparison, terms.bound_us),
        "faster": _not_faster(comparison, required),
    }
    failure = next((Refused(0, why, gate=gate) for gate, why in failures.items() if why and gate not in terms.off), None)
    return TimedSession(
        seed, comparison, fair, noise, required, clocks, len(rounds), len(kept), quiet, checked, failure=failure
    )


def _clock_checks(rounds: Sequence[Taken], terms: Terms) -> Iterator[ClockCheck]:
    yield _clock_check(rounds, "judge", terms)
    if terms.device == "cuda":  # on a CPU there are no streams that the worker's own time could have left out
        yield _clock_check(rounds, "wall", terms)
    fixed = [r for r in rounds if all(r.samples[s].fixing_us is not None for s in (EAGER, TWIN, CANDIDATE))]
    if len(fixed) >= _ENOUGH:
        yield _clock_check(fixed, "judge, until results were fixed", terms)


def _clock_check(rounds: Sequence[Taken], clock: str, terms: Terms) -> ClockCheck:
    ours, slope = _excess(rounds, clock, CANDIDATE, terms.short_calls)
    twins, twins_slope = _excess(rounds, clock, TWIN, terms.short_calls)
    told_us = median_interval([r.samples[CANDIDATE].call_us for r in rounds])[0]
    true_us = told_us + max(0.0, ours.middle)
    own_us = 2 * max(abs(twins.middle), abs(twins_slope.middle))
    reading_us = 0.0 if clock in ("judge", "wall") else _READINGS * terms.results_us
    constant_us = _CALL_US + _SAMPLE_US / terms.short_calls
    return ClockCheck(clock, ours, slope, max(_DISAGREEMENT * true_us, own_us, constant_us) + reading_us)


def _excess(rounds: Sequence[Taken], clock: str, side: str, short_calls: int) -> tuple[Interval, Interval]:
    """How much longer a call of a side took by a clock than the worker said, beyond the same of eager: microseconds of one
    call, from each request by itself and from the difference of long and short ones.
    """
    beyond = [(r.calls, _untold_us(r.samples[side], clock) - _untold_us(r.samples[EAGER], clock)) for r in rounds]
    each = Interval(*median_interval([us / calls for calls, us in beyond]))
    longer = [us / short_calls for calls, us in beyond if calls > short_calls]
    shorter = [us / short_calls for calls, us in beyond if calls <= short_calls]
    if min(len(longer), len(shorter)) < _ENOUGH:
        return each, each
    return each, Interval(*gap_interval(longer, shorter))


def _untold_us(sample: Sample, clock: str) -> float:
    """What a clock shows of a request beyond the calls that the worker accounts for."""
    whole_us = sample.wall_us if clock == "wall" else sample.judge_us
    if clock not in ("judge", "wall"):
        whole_us += sample.fixing_us or 0.0
    return whole_us - sample.calls * sample.call_us


def _clock_failure(clocks: Sequence[ClockCheck], comparison: Comparison) -> str:
    for check in clocks:
        if not check.agrees:
            more_us = max(check.excess_us.low, check.slope_us.low)
            return (
                f"the worker says {comparison.candidate.median_us:.1f} us a call, by the clock of the {check.clock} it took "
                f"at least {more_us:.1f} us more ({check.allowed_us:.1f} us may go unexplained)"
            )
    return ""


def _unfair(fair: Interval, spread: float) -> str:
    allowed = 1 + max(_UNFAIR, 2 * spread)
    if fair.low <= allowed:
        return ""
    return f"beside the candidate, eager takes {fair.middle:.2f} times what it takes alone (up to {allowed:.2f} is let pass)"


def _impossible(comparison: Comparison, bound_us: float) -> str:
    if comparison.candidate.median_us >= IMPOSSIBLE * bound_us:
        return ""
    return f"{comparison.candidate.median_us:.2f} us a call: this device cannot do it under {bound_us:.2f} us"


def _not_faster(comparison: Comparison, required: float) -> str:
    if comparison.ratio_low >= required:
        return ""
    return (
        f"{comparison.ratio:.3f} times as fast as eager, at least {comparison.ratio_low:.3f}; {required:.3f} is demanded "
        f"({comparison.candidate.median_us:.1f} us against {comparison.eager.median_us:.1f} us)"
    )


def remarks(session: TimedSession, bound_us: float) -> list[str]:
    """What a reader should know of a session."""
    found = []
    if IMPOSSIBLE * bound_us <= session.comparison.candidate.median_us < DOUBTFUL * bound_us:
        found.append(f"faster than the bound of {bound_us:.2f} us allows: look at what it does")
    if not session.quiet:
        found.append("the machine was busy: figures are from the least disturbed rounds")
    if session.beside_over_clean.low > session.required_ratio:
        found.append("eager was slower beside the candidate than alone; compared with eager alone")
    return found


def worse(sessions: Sequence[TimedSession]) -> Comparison | None:
    """The least favourable comparison."""
    return min((s.comparison for s in sessions), key=lambda c: c.ratio_low, default=None)


def failure_of(session: TimedSession, *, second: bool) -> Failure | None:
    """A second process that does not find it faster is a gate of its own."""
    failure = session.failure
    if second and failure is not None and failure.gate == "faster":
        assert isinstance(failure, Refused)
        return Refused(0, f"in a second process: {failure.reason}", gate="confirmed")
    return failure
