"""``judge``: the whole validation and timing on somebody's kernel, as a verdict with evidence."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_forge.benchmarking.pairs import Bench
from torch_forge.compilation.build import build
from torch_forge.errors import ToolchainError, UsageError
from torch_forge.functions import device_of, trace
from torch_forge.machine.locks import device_lane
from torch_forge.profiling.workload import Call
from torch_forge.records.gates import GATES, GatesRun, Stage, checked_names
from torch_forge.records.kernels import Built, Candidate, Config, Origin
from torch_forge.records.outcomes import Comparison, Crashed, Mismatch, Passed, Refused, TimedOut, Trial, Verdict
from torch_forge.records.problem import Policy, Problem
from torch_forge.search.workshop import Workshop
from torch_forge.settings import Settings
from torch_forge.validation.judge import Judge

MARGIN = 1.03
"""A kernel must be this much faster than eager, at the lower end of the interval; below it, noise decides."""


@dataclass(frozen=True)
class Judgement:
    """The verdict on one kernel for one reference at one sample."""

    problem: Problem
    trial: Trial
    gates: GatesRun
    """What the kernel had to pass, what was left out and what is not available here."""
    weaknesses: tuple[str, ...]
    """Wrong results that these inputs could not tell from the right one; empty is good."""
    seconds: float

    @property
    def accepted(self) -> bool:
        """Whether the kernel passed every gate that was asked for."""
        return isinstance(self.trial.verdict, Passed)

    @property
    def gate(self) -> str | None:
        """The gate that the kernel failed; None if it is accepted."""
        if not isinstance(self.trial.build, Built):
            return getattr(self.trial.build, "gate", "builds")
        return None if self.accepted else getattr(self.trial.verdict, "gate", "survives")

    @property
    def comparison(self) -> Comparison | None:
        """Kernel against eager; None if it is not right."""
        return self.trial.best

    def __str__(self) -> str:
        if not isinstance(self.trial.build, Built):
            return f"rejected by {self.gate!r}: {getattr(self.trial.build, 'log', '') or describe(self.trial.verdict)}"
        if not self.accepted:
            return f"rejected by {self.gate!r}: {describe(self.trial.verdict)}"
        best = self.trial.best
        if best is None:
            return "accepted; not timed"
        return (
            f"accepted: {best.candidate.median_us:.1f} us, eager {best.eager.median_us:.1f} us: "
            f"{best.ratio:.2f}x (95 % interval {best.ratio_low:.2f} to {best.ratio_high:.2f})"
        )


def describe(verdict: Verdict | None) -> str:
    """One line about a failure, with the first bad element where there is one."""
    match verdict:
        case None:
            return "it was not run"
        case Mismatch():
            at = ", ".join(map(str, verdict.index))
            got = f"got {verdict.got:.9g}, expected {verdict.expected:.9g}, eager {verdict.eager:.9g}"
            wrong = f"{verdict.bad_elements} of {verdict.total_elements} elements are wrong"
            return f"case {verdict.case!r}, output {verdict.output} at [{at}]: {got}: {verdict.reason}; {wrong}"
        case Refused():
            return verdict.reason
        case Crashed():
            how = f"signal {verdict.signal}" if verdict.signal else f"exit status {verdict.exit_status}"
            where = f" in case {verdict.case!r}" if verdict.case else ""
            return f"it ended with {how}{where}\n{verdict.log}".rstrip()
        case TimedOut():
            return f"no answer within {verdict.limit_s:.0f} s"
    return type(verdict).__name__


def judge(  # noqa: PLR0913 (each answers another question of a user)
    reference: Callable[..., Any],
    candidate: str | Path,
    sample: Any,
    *,
    policy: str | Policy = Policy.EAGER_EQUIVALENT,
    settings: Settings | None = None,
    shop: Workshop | None = None,
    without: Collection[str] = (),
    any_size: bool = False,
    timing: bool = True,
) -> Judgement:
    """Put a kernel through every gate against a reference function at a sample.

    candidate: source text or the path of a ``.cu`` or ``.cpp`` file under the entry-point contract (``forge.h``); its
    ``dims[]`` are the input sizes in order. It is built and run in child processes only.
    without: names of gates (``records.gates``) to leave out; the judgement says so. any_size: the kernel claims to serve
    other sizes than the sample's too, and is asked about them. timing: False stops when it is right.
    Raises UsageError, CaptureError, ToolchainError where it cannot judge.
    """
    call = Call.of(sample)
    settings = settings or Settings.resolve()
    source, off = _source(candidate), checked_names(without)
    opened = shop or Workshop.open(device_of(call), settings, policy=Policy.of(policy))
    try:
        if not opened.can_build():
            raise ToolchainError("there is no compiler to build the kernel with", advice="\n".join(opened.notes))
        traced = trace(reference, call, Policy.of(policy))
        return _Court(traced.problem, opened, off, timing).judge(source, any_size)
    finally:
        if shop is None:
            opened.close()


def problem_for(reference: Callable[..., Any], call: Call, policy: str | Policy) -> Problem:
    """The problem that a reference poses at a sample. Raises CaptureError."""
    return trace(reference, call, Policy.of(policy)).problem


def _source(candidate: str | Path) -> str:
    if isinstance(candidate, str) and "\n" in candidate:
        return candidate
    path = Path(candidate)
    if not path.is_file():
        raise UsageError(f"there is no file {path}", advice="Pass the kernel's source text or the path of its file.")
    return path.read_text()


@dataclass(frozen=True)
class _Court:
    """One problem in one workshop, and what is asked of candidates."""

    problem: Problem
    shop: Workshop
    off: frozenset[str]
    timing: bool

    def judge(self, source: str, any_size: bool) -> Judgement:
        """The whole way of one kernel."""
        began_s = time.monotonic()
        shop, problem = self.shop, self.problem
        assert shop.toolchain is not None
        align = max(s.itemsize for s in (*problem.graph.inputs, *problem.graph.output_specs))
        config = (Config({}, align),)
        candidate = Candidate(
            problem.digest, problem.name, shop.device.type, source, Origin.USER, "user", config, any_size=any_size
        )
        timeout_s = shop.settings.build_timeout_s
        built = build(candidate, shop.toolchain, shop.pool, staging_root=shop.staging, timeout_s=timeout_s)
        if not isinstance(built, Built):
            return self._judgement(Trial(candidate, built, None, (), 0.0), (), began_s)
        court = Judge(
            problem,
            lowered=None,
            device=shop.device,
            pool=shop.pool,
            settings=shop.settings,
            seed=shop.settings.seed,
            off=self.off & RIGHT,
        )
        verdict = court.check(built, blame=True)
        if isinstance(verdict, Passed):
            verdict = court.check(built, thorough=True, blame=True)
        comparisons: tuple[Comparison, ...] = ()
        if isinstance(verdict, Passed) and self.timing:
            verdict, comparisons = self._timed(built, verdict)
        return self._judgement(Trial(candidate, built, verdict, comparisons, 0.0), court.weaknesses, began_s)

    def _timed(self, built: Built, verdict: Verdict) -> tuple[Verdict, tuple[Comparison, ...]]:
        problem, shop = self.problem, self.shop
        dims = tuple(n for s in problem.graph.inputs for n in s.shape)
        with device_lane(shop.device):
            bench = Bench(problem, device=shop.device, pool=shop.pool, settings=shop.settings)
            measured = bench.compare(built, dims, (0,), seed=shop.settings.seed)
        verdict = measured.faults.get(0, verdict)
        best = next(iter(measured.comparisons), None)
        if isinstance(verdict, Passed) and best is not None and best.ratio_low < MARGIN and "faster" not in self.off:
            why = f"{best.ratio:.3f}x eager (95 % interval {best.ratio_low:.3f} to {best.ratio_high:.3f})"
            verdict = Refused(0, f"not faster: {why}; at least {MARGIN} is asked of its lower end", gate="faster")
        return verdict, measured.comparisons

    def _judgement(self, trial: Trial, weaknesses: tuple[str, ...], began_s: float) -> Judgement:
        failed = getattr(trial.verdict, "gate", None) if isinstance(trial.build, Built) else "builds"
        names = [g.name for g in GATES if self.timing or g.stage is not Stage.TIMED]
        met = names[: names.index(failed) + 1] if failed in names else names
        run = GatesRun(tuple(n for n in met if n not in self.off), tuple(n for n in names if n in self.off))
        return Judgement(self.problem, trial, run, weaknesses, time.monotonic() - began_s)


RIGHT = frozenset(g.name for g in GATES if g.stage is Stage.RIGHT)
