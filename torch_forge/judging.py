"""``judge``: the whole validation and timing on somebody's kernel, as a verdict with evidence."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torch_forge.benchmarking.confirm import confirm
from torch_forge.benchmarking.sides import native, python
from torch_forge.building import Reference
from torch_forge.compilation.build import Outcome as BuildOutcome
from torch_forge.compilation.build import build
from torch_forge.compilation.python import stage_python
from torch_forge.errors import ToolchainError, UsageError
from torch_forge.functions import device_of, trace
from torch_forge.knowledge.roofline import impossible_below_us
from torch_forge.machine.locks import device_lane
from torch_forge.profiling.workload import Call
from torch_forge.records.device import DeviceInfo
from torch_forge.records.gates import GATES, GatesRun, Stage, checked_names
from torch_forge.records.judgement import JudgementRecord
from torch_forge.records.kernels import BuildFailed, Built, Candidate, Config, Origin
from torch_forge.records.outcomes import Comparison, Crashed, Mismatch, Passed, Refused, TimedOut, Trial, Verdict
from torch_forge.records.problem import Policy, Problem
from torch_forge.records.sandbox import SandboxReport
from torch_forge.records.timing import Confirmation
from torch_forge.search.workshop import Workshop, environment
from torch_forge.settings import Settings
from torch_forge.validation.inspection import NO_BINARY, refused_binary, refused_source
from torch_forge.validation.judge import Judge
from torch_forge.validation.sanitize import SanitizerReport


@dataclass(frozen=True)
class Judgement:
    """The verdict on one kernel for one reference at one sample."""

    problem: Problem
    trial: Trial
    gates: GatesRun
    """What the kernel had to pass, what was left out and what is not available here."""
    weaknesses: tuple[str, ...]
    """Wrong results that these inputs could not tell from the right one; empty is good."""
    device: DeviceInfo
    seed: int
    seconds: float
    sandbox: SandboxReport
    """What the kernel was held in."""
    confirmation: Confirmation | None = None
    """How it was timed; None if it was not."""

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
    def passed(self) -> tuple[str, ...]:
        """The gates that the kernel met and passed, in order."""
        return tuple(name for name in self.gates.met if name != self.gate)

    @property
    def record(self) -> JudgementRecord:
        """All of it, to be kept or published."""
        built = self.trial.build
        return JudgementRecord(
            self.accepted,
            self.gate,
            str(self),
            self.problem.digest,
            self.problem.workload,
            self.problem.policy.value,
            self.device.name,
            self.seed,
            built.library_sha256 if isinstance(built, Built) else "",
            self.gates,
            self.weaknesses,
            self.trial,
            environment(self.device),
            self.seconds,
            self.sandbox,
            self.confirmation,
        )

    @property
    def comparison(self) -> Comparison | None:
        """Kernel against eager; None if it is not right."""
        return self.trial.best

    def __str__(self) -> str:
        if not isinstance(self.trial.build, Built):
            build = self.trial.build
            return f"rejected by {self.gate!r}: {build.log if isinstance(build, BuildFailed) else describe(build)}"
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
    reference: Callable[..., Any] | Reference,
    candidate: str | Path,
    sample: Any = None,
    *,
    policy: str | Policy = Policy.EAGER_EQUIVALENT,
    settings: Settings | None = None,
    shop: Workshop | None = None,
    without: Collection[str] = (),
    any_size: bool = False,
    timing: bool = True,
) -> Judgement:
    """Put a kernel through every gate against a reference at a sample.

    reference: a function of tensors, a module (its parameters become inputs), or a loaded ``Reference``, which has a sample.
    candidate: source text or the path of a ``.cu`` or ``.cpp`` file under the entry-point contract (``forge.h``), whose
    ``dims[]`` are the input sizes in order; or of a ``.py`` file with a module ``ModelNew`` or a function ``candidate``. It
    is built and run in child processes only.
    without: names of gates (``records.gates``) to leave out; the judgement says so. any_size: the kernel claims to serve
    other sizes than the sample's too, and is asked about them. timing: False stops when it is right.
    Raises UsageError, CaptureError, ToolchainError where it cannot judge.
    """
    posed = _posed(reference, sample)
    settings = settings or Settings.resolve()
    off, policy = checked_names(without), Policy.of(policy)
    source, backend = _source(candidate)
    opened = shop or Workshop.open(device_of(posed.call), settings, policy=policy)
    try:
        if backend == "native" and not opened.can_build():
            raise ToolchainError("there is no compiler to build the kernel with", advice="\n".join(opened.notes))
        problem = trace(posed.function, posed.call, policy).problem
        with opened.pool.unconfined() if "sandbox" in off else nullcontext():
            return _Court(problem, opened, off, timing).judge(_candidate(problem, posed, source, backend, opened, any_size))
    finally:
        if shop is None:
            opened.close()


def _posed(reference: Callable[..., Any] | Reference, sample: Any) -> Reference:
    if isinstance(reference, Reference):
        return reference
    if sample is None:
        raise UsageError("there is no sample", advice="Pass the arguments to judge at: judge(function, kernel, (x, y)).")
    call = Call.of(sample)
    if isinstance(reference, torch.nn.Module):
        return Reference.of_module(reference, call)
    return Reference(reference, call)


def problem_for(reference: Reference, policy: str | Policy) -> Problem:
    """The problem that a reference poses at its sample. Raises CaptureError."""
    return trace(reference.function, reference.call, Policy.of(policy)).problem


def _source(candidate: str | Path) -> tuple[str, str]:
    """The text, and whether it is ``native`` or ``python``."""
    if isinstance(candidate, str) and "\n" in candidate:
        return candidate, "native" if "forge_launch" in candidate else "python"
    path = Path(candidate)
    if not path.is_file():
        raise UsageError(f"there is no file {path}", advice="Pass the kernel's source text or the path of its file.")
    return path.read_text(), "python" if path.suffix == ".py" else "native"


def _candidate(problem: Problem, posed: Reference, source: str, backend: str, shop: Workshop, any_size: bool) -> Candidate:
    align = max(s.itemsize for s in (*problem.graph.inputs, *problem.graph.output_specs))
    python = backend == "python"
    return Candidate(
        problem.digest,
        problem.name,
        "python" if python else shop.device.type,
        source,
        Origin.USER,
        "user",
        (Config({}, align),),
        any_size=any_size,
        call=_python_call(posed, shop.settings.seed) if python else None,
    )


def _python_call(posed: Reference, seed: int) -> dict[str, Any]:
    """How the worker calls a Python candidate: see ``graphs.subjects.PythonSubject``."""
    if posed.call.kwargs:
        raise UsageError("a Python candidate is judged with positional arguments only", advice="Pass the sample as a tuple.")
    arguments: list[Any] = []
    for number, value in enumerate(posed.call.args):
        if isinstance(value, torch.Tensor):
            if number >= len(posed.parameters):
                arguments.append(sum(isinstance(a, torch.Tensor) for a in posed.call.args[:number]))
        elif isinstance(value, (bool, int, float, str)) or value is None:
            arguments.append({"plain": value})
        else:
            raise UsageError(
                f"argument {number} is a {type(value).__name__}; a Python candidate takes tensors and plain values"
            )
    odd = [type(v).__name__ for v in posed.init if not isinstance(v, (bool, int, float, str, list, tuple, type(None)))]
    if odd:
        raise UsageError(f"get_init_inputs() has a {odd[0]}; a Python candidate is made from plain values only")
    return {"arguments": arguments, "parameters": list(posed.parameters), "init": list(posed.init), "seed": seed}


@dataclass(frozen=True)
class _Court:
    """One problem in one workshop, and what is asked of candidates."""

    problem: Problem
    shop: Workshop
    off: frozenset[str]
    timing: bool

    def judge(self, candidate: Candidate) -> Judgement:
        """The whole way of one kernel."""
        began_s = time.monotonic()
        shop, problem = self.shop, self.problem
        built = self._built(candidate)
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
        missing: dict[str, str] = {}
        if isinstance(verdict, Passed) and "sanitizers" not in self.off:
            report = self._sanitized(court, built)
            verdict = report.finding or verdict
            whole = not report.tools and report.finding is None
            missing |= {"sanitizers" if whole else f"sanitizers ({tool})": why for tool, why in report.missing.items()}
        confirmation = self._timed(court, built) if isinstance(verdict, Passed) and self.timing else None
        comparisons: tuple[Comparison, ...] = ()
        if confirmation is not None:
            verdict = confirmation.failure or verdict
            comparisons = () if confirmation.comparison is None else (confirmation.comparison,)
            missing |= confirmation.missing
        trial = Trial(candidate, built, verdict, comparisons, 0.0)
        return self._judgement(trial, court.weaknesses, began_s, missing, confirmation)

    def _built(self, candidate: Candidate) -> BuildOutcome | Refused:
        """The built candidate, if neither its source nor the object has anything that speaks against running it."""
        shop = self.shop
        refused = refused_source(candidate, self.off)
        if refused is not None:
            return refused
        if candidate.call is not None:
            return stage_python(candidate, shop.staging)
        assert shop.toolchain is not None
        timeout_s = shop.settings.build_timeout_s
        built = build(candidate, shop.toolchain, shop.pool, staging_root=shop.staging, timeout_s=timeout_s)
        return (refused_binary(built, self.off) or built) if isinstance(built, Built) else built

    def _sanitized(self, court: Judge, built: Built) -> SanitizerReport:
        shop = self.shop
        limit_s = shop.settings.trial_timeout_s
        return court.sanitized(built, 0, toolchain=shop.toolchain, staging_root=shop.staging, timeout_s=limit_s)

    def _timed(self, court: Judge, built: Built) -> Confirmation:
        problem, shop = self.problem, self.shop
        dims = tuple(n for s in problem.graph.inputs for n in s.shape)
        with device_lane(shop.device):
            return confirm(
                problem,
                native(built, dims, 0) if built.candidate.call is None else python(built),
                device=shop.device,
                pool=shop.pool,
                settings=shop.settings,
                seed=shop.settings.seed,
                check=court.check_timed,
                bound_us=impossible_below_us(problem.graph.min_bytes, shop.device),
                off=self.off,
            )

    def _judgement(
        self,
        trial: Trial,
        weaknesses: tuple[str, ...],
        began_s: float,
        missing: Mapping[str, str] | None = None,
        confirmation: Confirmation | None = None,
    ) -> Judgement:
        missing = dict(missing or {}) | ({"binary": NO_BINARY} if NO_BINARY and "binary" not in self.off else {})
        failed = getattr(trial.verdict if isinstance(trial.build, Built) else trial.build, "gate", "")
        failed = "builds" if isinstance(trial.build, BuildFailed) else failed
        names = [g.name for g in GATES if self.timing or g.stage is not Stage.TIMED]
        met = names[: names.index(failed) + 1] if failed in names else names
        applied = tuple(n for n in met if n not in self.off and n not in missing)
        run = GatesRun(applied, tuple(n for n in names if n in self.off), missing)
        shop, seconds = self.shop, time.monotonic() - began_s
        sandbox = shop.pool.sandbox_report()
        return Judgement(
            self.problem, trial, run, weaknesses, shop.device, shop.settings.seed, seconds, sandbox, confirmation
        )


RIGHT = frozenset(g.name for g in GATES if g.stage is Stage.RIGHT)
