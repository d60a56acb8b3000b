"""``judge``: the whole validation and timing on somebody's kernel, as a verdict with evidence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_forge.benchmarking.pairs import Bench
from torch_forge.compilation.build import build
from torch_forge.errors import ToolchainError, UsageError
from torch_forge.functions import device_of, trace
from torch_forge.machine.locks import device_lane
from torch_forge.profiling.workload import Call
from torch_forge.records.kernels import Built, Candidate, Config, Origin
from torch_forge.records.outcomes import Comparison, Passed, Trial, Verdict
from torch_forge.records.problem import Policy, Problem
from torch_forge.search.workshop import Workshop
from torch_forge.settings import Settings
from torch_forge.validation.judge import Judge


@dataclass(frozen=True)
class Judgement:
    """The verdict on one kernel for one reference at one sample."""

    problem: Problem
    trial: Trial
    gates: tuple[str, ...]
    """What the kernel had to pass."""
    weaknesses: tuple[str, ...]
    """Wrong results that these inputs could not tell from the right one; empty is good."""

    @property
    def accepted(self) -> bool:
        """Whether the kernel is right on every case."""
        return isinstance(self.trial.verdict, Passed)

    @property
    def comparison(self) -> Comparison | None:
        """Kernel against eager; None if it is not right."""
        return self.trial.best

    def __str__(self) -> str:
        if not isinstance(self.trial.build, Built):
            return f"rejected: it does not build\n{getattr(self.trial.build, 'log', '')}"
        if not self.accepted:
            return f"rejected: {describe(self.trial.verdict)}"
        best = self.trial.best
        if best is None:
            return "accepted; not timed"
        return (
            f"accepted: {best.candidate.median_us:.1f} us, eager {best.eager.median_us:.1f} us: "
            f"{best.ratio:.2f}x (95 % interval {best.ratio_low:.2f} to {best.ratio_high:.2f})"
        )


def describe(verdict: Verdict | None) -> str:
    """One line about a failure."""
    if verdict is None:
        return "it was not run"
    reason = getattr(verdict, "reason", None)
    if reason is not None:
        return str(reason)
    return {"Crashed": "it crashed", "TimedOut": "it did not answer in time"}.get(
        type(verdict).__name__, type(verdict).__name__
    )


def judge(
    reference: Callable[..., Any],
    candidate: str | Path,
    sample: Any,
    *,
    policy: str | Policy = Policy.EAGER_EQUIVALENT,
    settings: Settings | None = None,
    shop: Workshop | None = None,
) -> Judgement:
    """Check a kernel against a reference function at a sample, and time it if it is right.

    candidate: source text or the path of a ``.cu`` or ``.cpp`` file under the entry-point contract (``forge.h``); its
    ``dims[]`` are
    the input sizes in order. The kernel is built and run in child processes only.
    Raises UsageError, CaptureError, ToolchainError where it cannot judge.
    """
    call = Call.of(sample)
    settings = settings or Settings.resolve()
    source = _source(candidate)
    opened = shop or Workshop.open(device_of(call), settings, policy=Policy.of(policy))
    try:
        if not opened.can_build():
            raise ToolchainError("there is no compiler to build the kernel with", advice="\n".join(opened.notes))
        traced = trace(reference, call, opened.policy)
        return _judge(traced.problem, source, opened)
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


def _judge(problem: Problem, source: str, shop: Workshop) -> Judgement:
    assert shop.toolchain is not None
    align = max(s.itemsize for s in (*problem.graph.inputs, *problem.graph.output_specs))
    candidate = Candidate(problem.digest, problem.name, shop.device.type, source, Origin.USER, "user", (Config({}, align),))
    built = build(candidate, shop.toolchain, shop.pool, staging_root=shop.staging, timeout_s=shop.settings.build_timeout_s)
    if not isinstance(built, Built):
        return Judgement(problem, Trial(candidate, built, None, (), 0.0), (), ())
    court = Judge(problem, lowered=None, device=shop.device, pool=shop.pool, settings=shop.settings, seed=shop.settings.seed)
    verdict = court.check(built, thorough=True)
    comparisons: tuple[Comparison, ...] = ()
    if isinstance(verdict, Passed):
        dims = tuple(n for s in problem.graph.inputs for n in s.shape)
        with device_lane(shop.device):
            bench = Bench(problem, device=shop.device, pool=shop.pool, settings=shop.settings)
            measured = bench.compare(built, dims, (0,), seed=shop.settings.seed)
        comparisons, verdict = measured.comparisons, measured.faults.get(0, verdict)
    return Judgement(problem, Trial(candidate, built, verdict, comparisons, 0.0), court.gates.met, court.weaknesses)
