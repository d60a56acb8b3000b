"""One problem to one decision: the cache first, then candidates built, checked and timed until one has won or none can.

The winner's rule is "do no harm": a kernel is installed only if it is right on every case and faster than
eager and than ``torch.compile``; otherwise the workload keeps what it has, and that is remembered too.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch_forge.benchmarking.pairs import Bench
from torch_forge.benchmarking.peers import peers
from torch_forge.caching.layers import Found, Kept, now
from torch_forge.compilation.build import build_glue, build_many
from torch_forge.compilation.jobs import build_jobs
from torch_forge.dispatch.glue import glue_source
from torch_forge.generation.llm.author import LLMAuthor
from torch_forge.generation.templates.engine import candidates, index_limit
from torch_forge.machine.locks import device_lane
from torch_forge.planning.plan import plan, reasons_against
from torch_forge.records.entry import SCHEMA, CacheEntry, KernelFacts
from torch_forge.records.kernels import Binding, Built, Candidate, Certificate, Plan
from torch_forge.records.outcomes import Comparison, Passed, PeerTimings, Trial, Verdict
from torch_forge.records.problem import Problem
from torch_forge.records.program import Lowered, NotLowered
from torch_forge.records.session import RegionResult
from torch_forge.records.tensors import TensorSpec
from torch_forge.search.workshop import Deadline, Workshop, environment
from torch_forge.validation.judge import Judge

MARGIN = 1.03
"""A kernel must be this much faster than eager, at the lower end of the interval; below it, noise decides."""


@dataclass(frozen=True)
class Forged:
    """What was decided for one workload; ``binding`` is None if nothing is to be installed."""

    problem: Problem
    result: RegionResult
    binding: Binding | None = None
    kernel_library: str = ""
    glue_library: str = ""


@dataclass
class _Case:
    """One problem in one workshop, while it is being worked on."""

    problem: Problem
    lowered: Lowered | NotLowered
    shop: Workshop
    calls: int
    share: float
    deadline: Deadline
    began_s: float = field(default_factory=time.monotonic)
    trials: list[Trial] = field(default_factory=list)

    @property
    def form(self) -> Lowered | None:
        return self.lowered if isinstance(self.lowered, Lowered) else None

    @property
    def largest_span(self) -> int:
        graph = self.problem.graph
        return max((_span(s) for s in (*graph.inputs, *graph.output_specs)), default=0)


def forge_problem(
    problem: Problem,
    lowered: Lowered | NotLowered,
    shop: Workshop,
    *,
    calls: int = 1,
    share: float = 1.0,
    deadline: Deadline,
    author: LLMAuthor | None = None,
) -> Forged:
    """Decide about one workload. Nothing that a candidate does raises; a missing compiler means the cache decides alone."""
    case = _Case(problem, lowered, shop, calls, share, deadline)
    known = _from_cache(case)
    if known is not None:
        return known
    the_plan = plan(problem, lowered, shop.device)
    if shop.toolchain is None:
        return _kept(case, the_plan, None, "failed", "no compiler on this machine", remember=False)
    reasons = list(lowered.reasons) if isinstance(lowered, NotLowered) else reasons_against(lowered, shop.device)
    if reasons and author is None:
        return _kept(case, the_plan, None, "kept", f"no template suits: {'; '.join(reasons)}")
    judge = Judge(
        problem, lowered=case.form, device=shop.device, pool=shop.pool, settings=shop.settings, seed=shop.settings.seed
    )
    best = _search(case, judge, the_plan, use_templates=not reasons, author=author)
    return _decide(case, the_plan, _confirmed(case, judge, best))


def _from_cache(case: _Case) -> Forged | None:
    shop = case.shop
    if shop.cache is None:
        return None
    answer = shop.cache.find(
        shop.key(case.problem), case.problem.workload, case.form, case.largest_span, can_build=shop.toolchain is not None
    )
    match answer:
        case Kept(entry=entry):
            return Forged(case.problem, _recalled(case, entry.result))
        case Found(stored=stored) if answer.exact and not answer.needs_build:
            e = stored.entry
            return Forged(
                case.problem, _recalled(case, e.result), e.binding, str(stored.kernel_library), str(stored.glue_library)
            )
    return None


def _recalled(case: _Case, result: RegionResult) -> RegionResult:
    return replace(
        result,
        calls=case.calls,
        share=case.share,
        name=case.problem.name,
        from_cache=True,
        seconds=time.monotonic() - case.began_s,
    )


def _search(case: _Case, judge: Judge, the_plan: Plan, *, use_templates: bool, author: LLMAuthor | None) -> Trial | None:
    """Every candidate the budget allows; the fastest right one."""
    if use_templates and case.form is not None:
        proposed = [c for c in candidates(case.problem, case.form, case.shop.device) if c.digest not in _tried(case)]
        for built in _built(case, proposed):
            _try(case, judge, built)
            if _good_enough(case, the_plan):
                break
    while author is not None and not case.deadline.passed and not _good_enough(case, the_plan):
        candidate = author.propose(case.problem, the_plan, case.shop.device, case.trials)
        if candidate is None:
            break
        if not isinstance(
            candidate, Candidate
        ):  # this reply brought none; the author knows why and says so in the next prompt
            continue
        for built in _built(case, [candidate]):
            _try(case, judge, built)
    return _fastest(case.trials)


def _fastest(trials: Sequence[Trial]) -> Trial | None:
    right = [t for t in trials if t.best is not None]
    return min(right, key=lambda t: t.best.candidate.median_us, default=None)  # type: ignore[union-attr]


def _confirmed(case: _Case, judge: Judge, best: Trial | None) -> Trial | None:
    """The fastest trial that also passes the thorough cases; config 0 too, which serves misaligned tensors."""
    while best is not None and best.best is not None:
        assert isinstance(best.build, Built)
        verdicts = judge.verdicts(best.build, sorted({0, best.best.config}), thorough=True)
        failed = {c: v for c, v in verdicts.items() if not isinstance(v, Passed)}
        if not failed:
            return replace(best, verdict=verdicts[best.best.config])
        case.trials[case.trials.index(best)] = replace(best, verdict=next(iter(failed.values())), comparisons=())
        best = _fastest(case.trials)
    return None


def _tried(case: _Case) -> set[str]:
    return {t.candidate.digest for t in case.trials}


def _built(case: _Case, proposed: Sequence[Candidate]) -> Iterator[Built]:
    """Builds as they finish; what does not build is a trial already."""
    shop = case.shop
    assert shop.toolchain is not None
    builds = build_many(
        proposed,
        shop.toolchain,
        shop.pool,
        staging_root=shop.staging,
        timeout_s=shop.settings.build_timeout_s,
        jobs=build_jobs(shop.settings),
    )
    for candidate, outcome in builds:
        if isinstance(outcome, Built):
            yield outcome
        else:
            _record(case, Trial(candidate, outcome, None, (), 0.0))
        if case.deadline.passed:
            return


def _try(case: _Case, judge: Judge, built: Built) -> None:
    """Check every config, time those that are right."""
    began_s = time.monotonic()
    verdicts = judge.verdicts(built)
    right = [c for c, v in verdicts.items() if isinstance(v, Passed)]
    comparisons: tuple[Comparison, ...] = ()
    if right:
        bench = Bench(case.problem, device=case.shop.device, pool=case.shop.pool, settings=case.shop.settings)
        with device_lane(case.shop.device):
            measured = bench.compare(built, _dims(case), right, seed=case.shop.settings.seed)
        comparisons = measured.comparisons
        verdicts.update(measured.faults)
    _record(case, Trial(built.candidate, built, _worst(verdicts), comparisons, time.monotonic() - began_s))


def _worst(verdicts: dict[int, Verdict]) -> Verdict:
    """Passed if any config passed, since the others are simply not used; else the first failure."""
    ordered = [verdicts[k] for k in sorted(verdicts)]
    return next((v for v in ordered if isinstance(v, Passed)), ordered[0])


def _record(case: _Case, trial: Trial) -> None:
    case.trials.append(trial)
    case.shop.progress.candidate(trial.outcome, trial.best.candidate.median_us if trial.best else None)


def _good_enough(case: _Case, the_plan: Plan) -> bool:
    bests = [t.best.candidate.median_us for t in case.trials if t.best is not None]
    return case.deadline.passed or (bool(bests) and min(bests) <= the_plan.target_us)


def _dims(case: _Case) -> tuple[int, ...]:
    if case.form is not None:
        return case.form.values
    return tuple(n for s in case.problem.graph.inputs for n in s.shape)


def _decide(case: _Case, the_plan: Plan, best: Trial | None) -> Forged:
    if best is None or best.best is None:
        counts = (
            ", ".join(f"{n} {o}" for o, n in Counter(t.outcome for t in case.trials).items()) or "no candidate was tried"
        )
        return _kept(case, the_plan, None, "failed", f"no right kernel: {counts}", remember=bool(case.trials))
    won = best.best
    if won.ratio_low < MARGIN:
        why = f"eager is as fast: {won.eager.median_us:.1f} us against {won.candidate.median_us:.1f} us"
        return _kept(case, the_plan, best, "kept", why)
    with device_lane(case.shop.device):
        peer = peers(case.problem, device=case.shop.device, pool=case.shop.pool, seed=case.shop.settings.seed)
    inductor_us = peer.inductor_over_eager * won.eager.median_us if peer.inductor_over_eager is not None else None
    if inductor_us is not None and inductor_us < won.candidate.median_us:
        why = f"torch.compile is faster: {inductor_us:.1f} us against {won.candidate.median_us:.1f} us"
        return _kept(case, the_plan, best, "kept", why, inductor_us=inductor_us)
    return _win(case, the_plan, best, inductor_us, peer)


def _result(
    case: _Case, the_plan: Plan, best: Trial | None, verdict: str, why: str, inductor_us: float | None = None
) -> RegionResult:
    won = best.best if best is not None else None
    passed = best.verdict if best is not None and isinstance(best.verdict, Passed) else None
    return RegionResult(
        name=case.problem.name,
        problem=case.problem.digest,
        workload=case.problem.workload,
        calls=case.calls,
        share=case.share,
        eager_us=won.eager.median_us if won else 0.0,
        inductor_us=inductor_us,
        forge_us=won.candidate.median_us if won else None,
        bound_us=the_plan.bound_us,
        verdict=verdict,
        why=why,
        origin=best.candidate.origin.value if best else "",
        error=passed.cases[0].candidate if passed else None,
        eager_error=passed.cases[0].eager if passed else None,
        from_cache=False,
        outcomes=dict(Counter(t.outcome for t in case.trials)),
        seconds=time.monotonic() - case.began_s,
    )


def _kept(
    case: _Case,
    the_plan: Plan,
    best: Trial | None,
    verdict: str,
    why: str,
    *,
    remember: bool = True,
    inductor_us: float | None = None,
) -> Forged:
    result = _result(case, the_plan, best, verdict, why, inductor_us)
    if remember and case.shop.cache is not None and not case.deadline.passed:
        case.shop.cache.keep(case.shop.key(case.problem), case.problem.workload, result)
    return Forged(case.problem, result)


def _win(case: _Case, the_plan: Plan, best: Trial, inductor_us: float | None, peer: PeerTimings) -> Forged:
    """Build the glue, store the entry, hand back what to bind."""
    shop, problem, won, built = case.shop, case.problem, best.best, best.build
    assert won is not None
    assert isinstance(built, Built)
    assert shop.toolchain is not None
    graph = problem.graph
    glue_text = glue_source(problem.name, problem.digest, len(graph.inputs), len(graph.outputs), built.candidate.backend)
    glue = build_glue(
        glue_text,
        f"glue_{problem.digest}",
        built.candidate.backend,
        shop.toolchain,
        shop.pool,
        staging_root=shop.staging,
        timeout_s=shop.settings.build_timeout_s,
    )
    config = built.candidate.configs[won.config]
    binding = Binding(
        graph.inputs, graph.output_specs, _dims(case), won.config, config.align_bytes, 0, built.candidate.workspace_bytes
    )
    gain = won.eager.median_us / won.candidate.median_us
    why = f"{gain:.2f}x eager" + (
        f", {inductor_us / won.candidate.median_us:.2f}x torch.compile"
        if inductor_us
        else f" ({peer.note})"
        if peer.note
        else ""
    )
    result = _result(case, the_plan, best, "installed", why, inductor_us)
    forged = Forged(problem, result, binding, built.library, str(glue))
    if shop.cache is None:
        return forged
    assert isinstance(best.verdict, Passed)
    certificate = Certificate(
        problem.digest,
        problem.policy.value,
        built.candidate.program,
        dict(built.candidate.statics),
        index_limit(built.candidate),
        (problem.workload,),
    )
    entry = CacheEntry(
        SCHEMA,
        shop.key(problem),
        problem.workload,
        KernelFacts.of(built),
        certificate,
        binding,
        best.comparisons,
        best.verdict.cases,
        (),
        result,
        environment(shop.device),
        now(),
        {},
    )
    suffix = "cu" if built.candidate.backend == "cuda" else "cpp"
    stored = shop.cache.put(
        entry,
        {
            f"kernel.{suffix}": built.candidate.source.encode(),
            "glue.cpp": glue_text.encode(),
            "kernel.so": Path(built.library),
            "glue.so": glue,
        },
    )
    return replace(forged, kernel_library=str(stored.kernel_library), glue_library=str(stored.glue_library))


def _span(spec: TensorSpec) -> int:
    return 1 + sum((n - 1) * abs(s) for n, s in zip(spec.shape, spec.stride, strict=True)) if spec.numel else 0


__all__ = ["Forged", "forge_problem"]
