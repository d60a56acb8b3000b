"""The winner's rule, "do no harm": a kernel is installed only if it is faster than eager and than ``torch.compile``.

Otherwise the workload keeps what it has, and that decision is remembered with its figures.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from torch_forge.benchmarking.peers import peers
from torch_forge.caching.layers import now
from torch_forge.compilation.build import build_glue
from torch_forge.dispatch.glue import glue_source
from torch_forge.generation.templates.engine import index_limit
from torch_forge.machine.locks import device_lane
from torch_forge.records.entry import SCHEMA, CacheEntry, KernelFacts
from torch_forge.records.kernels import Built, Certificate, Plan
from torch_forge.records.outcomes import Comparison, Mismatch, Passed, Trial
from torch_forge.records.session import RegionResult
from torch_forge.search.case import Case, Forged
from torch_forge.search.trials import MARGIN
from torch_forge.search.workshop import environment

TIE = 1.03
"""Times of different processes cannot be told apart more closely; who is not slower than ``torch.compile`` and faster than
eager, which runs otherwise, is installed."""


def decide(
    case: Case, the_plan: Plan, best: Trial | None, gates: tuple[str, ...], *, against_inductor: bool = True
) -> Forged:
    """What becomes of the workload, given its best right candidate."""
    won = best.best if best is not None else None
    if best is None or won is None:
        return kept(case, the_plan, None, "failed", f"no right kernel: {_what_failed(case)}")
    if won.ratio_low < MARGIN or best.not_faster is not None:
        why = f"eager is as fast: {won.eager.median_us:.1f} us against {won.candidate.median_us:.1f} us"
        return kept(case, the_plan, best, "kept", why)
    compared = against_inductor and case.shop.settings.peers == "both"
    inductor_us, note = _inductor_us(case, won) if compared else (None, "")
    if inductor_us is not None and TIE * inductor_us < won.candidate.median_us:
        why = f"torch.compile is faster: {inductor_us:.1f} us against {won.candidate.median_us:.1f} us"
        return kept(case, the_plan, best, "kept", why, inductor_us=inductor_us)
    gains = [f"{won.eager.median_us / won.candidate.median_us:.2f}x eager"]
    if inductor_us is not None:
        gains.append(f"{inductor_us / won.candidate.median_us:.2f}x torch.compile")
    why = ", ".join(gains) + (f" ({note})" if note else "")
    return _install(case, best, _result(case, the_plan, best, "installed", why, inductor_us), gates)


def _what_failed(case: Case) -> str:
    """Candidates by outcome, and what was wrong with the first."""
    if not case.trials:
        return "no candidate was tried"
    counts = ", ".join(f"{n} {o}" for o, n in Counter(t.outcome for t in case.trials).items())
    verdict = case.trials[0].verdict
    where = f" ({verdict.case}: got {verdict.got:g}, expected {verdict.expected:g})" if isinstance(verdict, Mismatch) else ""
    reason = getattr(verdict, "reason", "") or getattr(verdict, "log", "")[-200:]
    return f"{counts}; {reason}{where}" if reason else counts


def _inductor_us(case: Case, won: Comparison) -> tuple[float | None, str]:
    """What ``torch.compile`` takes, and why that is not known where it is not."""
    with device_lane(case.shop.device):
        peer = peers(
            case.problem,
            device=case.shop.device,
            pool=case.shop.pool,
            seed=case.shop.settings.seed,
            compiler_cache=case.shop.staging,
        )
    # Both were measured against eager, each in its own process; eager is the common scale.
    return (None if peer.inductor_over_eager is None else peer.inductor_over_eager * won.eager.median_us), peer.note


def kept(
    case: Case, the_plan: Plan, best: Trial | None, verdict: str, why: str, *, inductor_us: float | None = None
) -> Forged:
    """Nothing is installed; remembered unless the search was cut short or the machine may be to blame."""
    result = _result(case, the_plan, best, verdict, why, inductor_us)
    cache = case.shop.cache
    doubtful = case.deadline.passed or any(trial.doubtful for trial in case.trials)
    if cache is not None and case.shop.toolchain is not None and not doubtful:
        cache.keep(case.shop.key(case.problem), case.problem.workload, result)
    return Forged(case.problem, result)


def _result(
    case: Case, the_plan: Plan, best: Trial | None, verdict: str, why: str, inductor_us: float | None
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
        seconds=case.seconds,
    )


def _install(case: Case, best: Trial, result: RegionResult, gates: tuple[str, ...]) -> Forged:
    """Build the glue, store the entry, hand back what to bind."""
    shop, built, won = case.shop, best.build, best.best
    assert isinstance(built, Built)
    assert won is not None
    text, glue = _glue(case, built)
    candidate = built.candidate
    binding = case.binding(won.config, candidate)
    forged = Forged(case.problem, replace(result, seconds=case.seconds), binding, built.library, str(glue))
    if shop.cache is None:
        return forged
    suffix = "cu" if candidate.backend == "cuda" else "cpp"
    files: dict[str, bytes | Path] = {
        f"kernel.{suffix}": candidate.source.encode(),
        "glue.cpp": text.encode(),
        "kernel.so": Path(built.library),
        "glue.so": glue,
    }
    stored = shop.cache.put(_entry(case, best, forged, gates), files)
    return replace(forged, kernel_library=str(stored.kernel_library), glue_library=str(stored.glue_library))


def _glue(case: Case, built: Built) -> tuple[str, Path]:
    shop, problem = case.shop, case.problem
    assert shop.toolchain is not None
    backend = built.candidate.backend
    text = glue_source(problem.name, problem.digest, len(problem.graph.inputs), len(problem.graph.outputs), backend)
    library = build_glue(
        text,
        f"glue_{problem.digest}",
        backend,
        shop.toolchain,
        shop.pool,
        staging_root=shop.staging,
        timeout_s=shop.settings.build_timeout_s,
    )
    return text, library


def _entry(case: Case, best: Trial, forged: Forged, gates: tuple[str, ...]) -> CacheEntry:
    problem, built = case.problem, best.build
    assert isinstance(built, Built)
    assert isinstance(best.verdict, Passed)
    assert forged.binding is not None
    certificate = Certificate(
        problem.digest,
        problem.policy.value,
        built.candidate.program,
        dict(built.candidate.statics),
        index_limit(built.candidate),
        (problem.workload,),
    )
    return CacheEntry(
        schema=SCHEMA,
        key=case.shop.key(problem),
        workload=problem.workload,
        kernel=KernelFacts.of(built),
        certificate=certificate,
        binding=forged.binding,
        comparisons=best.comparisons,
        cases=best.verdict.cases,
        gates=gates,
        result=forged.result,
        environment=environment(case.shop.device),
        created=now(),
        files={},
    )
