"""One problem to one decision: the cache first, then candidates built, checked and timed until one has won or none can."""

from __future__ import annotations

from torch_forge.generation.llm.author import LLMAuthor
from torch_forge.planning.plan import plan, reasons_against
from torch_forge.records.problem import Problem
from torch_forge.records.program import Lowered, NotLowered
from torch_forge.search.case import Case, Forged
from torch_forge.search.decide import decide, kept
from torch_forge.search.known import from_cache
from torch_forge.search.trials import search
from torch_forge.search.workshop import Deadline, Workshop
from torch_forge.validation.judge import Judge


def forge_problem(
    problem: Problem,
    lowered: Lowered | NotLowered,
    shop: Workshop,
    *,
    calls: int = 1,
    share: float = 1.0,
    deadline: Deadline,
    author: LLMAuthor | None = None,
    against_inductor: bool = True,
) -> Forged:
    """Decide about one workload. Nothing that a candidate does raises; without a compiler the cache decides alone.

    against_inductor: False where the caller compares the whole function with ``torch.compile`` anyway.
    calls, share: how often the model runs it and its share of the time, for the report.
    """
    case = Case(problem, lowered, shop, calls, share, deadline)
    known = from_cache(case)
    if isinstance(known, Forged):
        return known
    the_plan = plan(problem, lowered, shop.device)
    if not shop.can_build():
        return kept(case, the_plan, None, "failed", "not in the cache, and nothing can be built here")
    reasons = list(lowered.reasons) if isinstance(lowered, NotLowered) else reasons_against(lowered, shop.device)
    if reasons and author is None:
        return kept(case, the_plan, None, "kept", f"no template suits: {'; '.join(reasons)}")
    judge = Judge(
        problem, lowered=case.form, device=shop.device, pool=shop.pool, settings=shop.settings, seed=shop.settings.seed
    )
    best = search(case, judge, the_plan, start=known, use_templates=not reasons, author=author)
    return decide(case, the_plan, best, judge.gates.met, against_inductor=against_inductor)


__all__ = ["Forged", "forge_problem"]
