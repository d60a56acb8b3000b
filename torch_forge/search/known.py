"""What the cache says of a workload: the decision itself, or a kernel of the same class of shapes to begin with."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch_forge.caching.layers import Found, Kept
from torch_forge.records.entry import CacheEntry
from torch_forge.records.kernels import Built, Candidate
from torch_forge.records.session import RegionResult
from torch_forge.search.case import Case, Forged


@dataclass(frozen=True)
class Start:
    """A kernel verified for other sizes, or shipped as source: the first candidate to try."""

    candidate: Candidate
    built: Built | None
    """None: only the source is there."""


def from_cache(case: Case) -> Forged | Start | None:
    """The stored decision for exactly this workload; else a kernel to start from; else None."""
    shop = case.shop
    if shop.cache is None:
        return None
    answer = shop.cache.find(
        shop.key(case.problem), case.problem.workload, case.form, case.largest_span, can_build=shop.toolchain is not None
    )
    match answer:
        case Kept(entry=entry):
            return Forged(case.problem, _recalled(case, entry.result))
        case Found(stored=stored) if not answer.needs_build and (answer.exact or shop.toolchain is None):
            return _stored(case, stored.entry, str(stored.kernel_library), str(stored.glue_library), exact=answer.exact)
        case Found(stored=stored):
            return _start(case, answer)
    return None


def _stored(case: Case, entry: CacheEntry, kernel: str, glue: str, *, exact: bool) -> Forged:
    """The entry's kernel for this workload. For other sizes of its class, its certificate is what vouches for it."""
    result = _recalled(case, entry.result)
    if exact:
        return Forged(case.problem, result, entry.binding, kernel, glue)
    binding = case.binding(entry.binding.config, entry.kernel)
    why = f"a kernel of this class, tuned at another size where it was {entry.result.why}"
    result = replace(result, workload=case.problem.workload, eager_us=0.0, forge_us=None, inductor_us=None, why=why)
    return Forged(case.problem, result, binding, kernel, glue)


def _start(case: Case, answer: Found) -> Start | None:
    stored = answer.stored
    try:
        candidate = stored.entry.kernel.candidate(case.problem.digest, stored.kernel_source.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # gone or altered since it was found: as if it had not been there
        return None
    if answer.needs_build:
        return Start(candidate, None)
    facts = stored.entry.files["kernel.so"]
    built = Built(candidate, str(stored.kernel_library), facts.sha256, 0.0, dict(stored.entry.kernel.resources))
    return Start(candidate, built)


def _recalled(case: Case, result: RegionResult) -> RegionResult:
    return replace(
        result,
        calls=case.calls,
        share=case.share,
        name=case.problem.name,
        from_cache=True,
        seconds=case.seconds,
    )
