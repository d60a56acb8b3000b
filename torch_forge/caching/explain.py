"""Why the cache has no answer: the entries that are close, each with the fields that keep it from serving."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch_forge.caching.entry import Bad
from torch_forge.caching.store import DirectoryStore
from torch_forge.caching.upkeep import Located, walk
from torch_forge.records.entry import AnyEntry, CacheEntry


@dataclass(frozen=True)
class Explanation:
    """One stored entry of the problem in question."""

    device: str
    problem: str
    name: str
    workload: str
    """It was tuned on; empty if the entry is damaged."""
    kind: str
    """``kernel``, ``kept`` or ``damaged``."""
    what: str
    """One line: the kernel and its figures, or why eager was kept."""
    created: str
    reasons: tuple[str, ...]
    """Fields that differ from what was asked for; empty if it serves, as far as was asked."""


def explain(store: DirectoryStore, digest: str, wanted: Mapping[str, str], *, workload: str = "") -> tuple[Explanation, ...]:
    """Every entry whose problem or workload begins with ``digest``, compared with what is wanted.

    wanted: fields of ``CacheKey`` that are known, the others are not compared. workload: an exact case, or a prefix of it.
    """
    return tuple(
        _explanation(located, wanted, workload)
        for located in walk(store)
        if located.problem.startswith(digest) or located.name.startswith(digest)
    )


def _explanation(located: Located, wanted: Mapping[str, str], workload: str) -> Explanation:
    entry = located.entry
    where = (located.device, located.problem, located.name)
    if isinstance(entry, Bad):
        return Explanation(*where, workload="", kind="damaged", what="", created="", reasons=(entry.reason,))
    reasons = entry.key.reasons_against(replace(entry.key, **wanted)) + _workload_reasons(entry, workload)
    kind = "kernel" if isinstance(entry, CacheEntry) else "kept"
    return Explanation(*where, entry.workload, kind, _what(entry), entry.created, tuple(reasons))


def _workload_reasons(entry: AnyEntry, workload: str) -> list[str]:
    if not workload or entry.workload.startswith(workload):
        return []
    if not isinstance(entry, CacheEntry):
        return [f"workload: decided for {entry.workload}, wanted {workload}"]
    if any(w.startswith(workload) for w in entry.certificate.workloads):
        return []
    if entry.certificate.program is None:
        return [f"workload: verified only for {', '.join(entry.certificate.workloads)}"]
    limits = "".join(f", {name} = {value}" for name, value in sorted(entry.certificate.statics.items()))
    needed = f"program {entry.certificate.program}{limits}, with at most {entry.certificate.max_numel} elements"
    return [f"workload: tuned on {entry.workload}; serves {workload} only if that lowers to {needed}"]


def _what(entry: AnyEntry) -> str:
    if not isinstance(entry, CacheEntry):
        return f"{entry.result.name}: {entry.result.verdict}, {entry.result.why}"
    kernel, result = entry.kernel, entry.result
    forged = "not timed" if result.forge_us is None else f"{result.forge_us:.1f} us against eager's {result.eager_us:.1f} us"
    return f"{kernel.name} by {kernel.origin.value} {kernel.author}: {forged}"
