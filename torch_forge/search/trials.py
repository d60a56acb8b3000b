"""Candidates through build, verdict and timing: templates first, then an author if there is one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from torch_forge.benchmarking.confirm import confirm
from torch_forge.benchmarking.pairs import Bench
from torch_forge.benchmarking.sides import native
from torch_forge.compilation.build import build_many
from torch_forge.compilation.jobs import build_jobs
from torch_forge.generation.llm.author import LLMAuthor
from torch_forge.generation.templates.engine import candidates
from torch_forge.knowledge.roofline import impossible_below_us
from torch_forge.machine.locks import device_lane
from torch_forge.records.kernels import Built, Candidate, Plan
from torch_forge.records.outcomes import Comparison, Passed, Refused, Trial, Verdict
from torch_forge.search.case import Case
from torch_forge.search.known import Start
from torch_forge.validation.inspection import refused_binary, refused_source
from torch_forge.validation.judge import Judge

MARGIN = 1.03
"""A kernel must be this much faster than eager, at the lower end of the interval; below it, noise decides."""


TIMING_S = 1.2
"""Seconds of timing for one candidate, all its configs together."""
SECOND_SEED = 7919
"""Added to the seed for the second opinion on a winner."""
NOT_FASTER = ("faster", "confirmed")
"""Gates that a kernel fails without being wrong."""


def search(
    case: Case, judge: Judge, the_plan: Plan, *, start: Start | None, use_templates: bool, author: LLMAuthor | None
) -> Trial | None:
    """Every candidate that the deadline allows; the fastest that is also right on the thorough cases."""
    if author is not None:
        case.shop.demand_sandbox()
    case.trials += case.journal.trials
    if start is not None:
        _try_start(case, judge, start)
    if not _satisfied(case, start) and use_templates and case.form is not None:
        seen = {t.candidate.digest for t in case.trials}
        proposed = [c for c in candidates(case.problem, case.form, case.shop.device) if c.digest not in seen]
        for built in _built(case, proposed):
            _try(case, judge, built)
            if _at_target(case, the_plan):
                break
    while author is not None and not _at_target(case, the_plan):
        candidate = author.propose(case.problem, the_plan, case.shop.device, case.trials)
        if candidate is None:
            break
        if isinstance(candidate, Candidate):  # else this reply brought none, and the next prompt says why
            for built in _built(case, [candidate]):
                _try(case, judge, built)
    return _confirmed(case, judge)


def _try_start(case: Case, judge: Judge, start: Start) -> None:
    if start.built is not None:
        _try(case, judge, start.built)
        return
    for built in _built(case, [start.candidate]):
        _try(case, judge, built)


def _satisfied(case: Case, start: Start | None) -> bool:
    """A kernel of the same class that beats eager here too is enough: a new size does not cost a new search."""
    best = case.fastest()
    return start is not None and best is not None and best.best is not None and best.best.ratio_low >= MARGIN


def _at_target(case: Case, the_plan: Plan) -> bool:
    best = case.fastest()
    reached = best is not None and best.best is not None and best.best.candidate.median_us <= the_plan.target_us
    return reached or case.deadline.passed


def _built(case: Case, proposed: Sequence[Candidate]) -> Iterator[Built]:
    """Builds as they finish; what does not build is a trial already."""
    shop = case.shop
    assert shop.toolchain is not None
    looked_at = [(c, refused_source(c)) for c in proposed]
    for candidate, refused in looked_at:
        if refused is not None:
            case.record(Trial(candidate, refused, refused, (), 0.0))
    builds = build_many(
        [c for c, refused in looked_at if refused is None],
        shop.toolchain,
        shop.pool,
        staging_root=shop.staging,
        timeout_s=shop.settings.build_timeout_s,
        jobs=build_jobs(shop.settings),
    )
    for candidate, outcome in builds:
        refused = refused_binary(outcome) if isinstance(outcome, Built) else None
        if refused is not None:
            case.record(Trial(candidate, refused, refused, (), 0.0))
        elif isinstance(outcome, Built):
            yield outcome
        else:
            case.record(Trial(candidate, outcome, None, (), 0.0))
        if case.deadline.passed:
            return


def _try(case: Case, judge: Judge, built: Built) -> None:
    """Check every config, time those that are right."""
    began_s = time.monotonic()
    verdicts = judge.verdicts(built)
    right = [c for c, v in verdicts.items() if isinstance(v, Passed)]
    comparisons: tuple[Comparison, ...] = ()
    if right:
        bench = Bench(case.problem, device=case.shop.device, pool=case.shop.pool, settings=case.shop.settings)
        dims = case.dims(built.candidate.program)
        with device_lane(case.shop.device):
            measured = bench.compare(built, dims, right, seed=case.shop.settings.seed, budget_s=TIMING_S)
            if not measured.quiet:  # somebody else had the cores: look again
                measured = bench.compare(built, dims, right, seed=case.shop.settings.seed, budget_s=TIMING_S)
        comparisons = measured.comparisons
        verdicts.update(measured.faults)
    case.record(Trial(built.candidate, built, _summary(verdicts), comparisons, time.monotonic() - began_s))


def _summary(verdicts: Mapping[int, Verdict]) -> Verdict:
    """Passed if any config passed, since the others are simply not used; else the first failure."""
    ordered = [verdicts[k] for k in sorted(verdicts)]
    return next((v for v in ordered if isinstance(v, Passed)), ordered[0])


def _confirmed(case: Case, judge: Judge) -> Trial | None:
    """The fastest trial that also passes the thorough cases (config 0 too, which serves misaligned tensors), the sanitizers
    and the timing protocol; one that passes all but is not faster ends the search too.
    """
    best = case.fastest()
    while best is not None and best.best is not None:
        confirmed = _closely(case, judge, best)
        if isinstance(confirmed.verdict, Passed):
            return confirmed
        case.trials[case.trials.index(best)] = replace(confirmed, comparisons=())
        best = case.fastest()
    return None


def _closely(case: Case, judge: Judge, best: Trial) -> Trial:
    """The trial with the verdict of everything that is only asked of a winner."""
    assert isinstance(best.build, Built)
    assert best.best is not None
    config = best.best.config
    verdicts = judge.verdicts(best.build, sorted({0, config}), thorough=True)
    failed = next((v for v in verdicts.values() if not isinstance(v, Passed)), None)
    if failed is not None:
        return replace(best, verdict=failed)
    report = judge.sanitized(
        best.build,
        config,
        toolchain=case.shop.toolchain,
        staging_root=case.shop.staging,
        timeout_s=case.shop.settings.trial_timeout_s,
    )
    if report.finding is not None:
        return replace(best, verdict=report.finding)
    return _measured_again(case, judge, replace(best, verdict=verdicts[config]))


def _measured_again(case: Case, judge: Judge, best: Trial) -> Trial:
    """The trial with what the whole timing protocol says of its best config, on inputs that nobody has seen."""
    assert isinstance(best.build, Built)
    assert best.best is not None
    shop, config = case.shop, best.best.config
    others = tuple(c for c in best.comparisons if c.config != config)
    if shop.settings.timing == "brief":
        return _briefly(case, best, others)
    with device_lane(shop.device):
        confirmation = confirm(
            case.problem,
            native(best.build, case.dims(best.candidate.program), config),
            device=shop.device,
            pool=shop.pool,
            settings=shop.settings,
            seed=shop.settings.seed + SECOND_SEED,
            check=judge.check_timed,
            bound_us=impossible_below_us(case.problem.graph.min_bytes, shop.device),
        )
    failure = confirmation.failure
    if failure is not None and failure.gate not in NOT_FASTER:
        return replace(best, verdict=failure)
    slower = failure if isinstance(failure, Refused) else None
    return replace(best, comparisons=(confirmation.comparison or best.best, *others), not_faster=slower)


def _briefly(case: Case, best: Trial, others: tuple[Comparison, ...]) -> Trial:
    """The trial with the less favourable of two measurements of its best config: the fastest of many flatters itself."""
    assert isinstance(best.build, Built)
    assert best.best is not None
    shop = case.shop
    bench = Bench(case.problem, device=shop.device, pool=shop.pool, settings=shop.settings)
    dims, seed = case.dims(best.candidate.program), shop.settings.seed + SECOND_SEED
    with device_lane(shop.device):
        again = bench.compare(best.build, dims, [best.best.config], seed=seed, budget_s=TIMING_S / 2)
    if not again.comparisons:
        return replace(best, verdict=next(iter(again.faults.values()), best.verdict), comparisons=())
    lower = min(best.best, again.comparisons[0], key=lambda c: c.ratio_low)
    return replace(best, comparisons=(lower, *others))
