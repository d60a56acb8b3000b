"""A session report in plain numbers and words, once, for every renderer.

Nothing here formats columns or knows a terminal, and no renderer decides anything: what is said of a run is decided, and
tested, in this file. That a region is kept eager is a normal outcome and is worded as one; that nothing was replaced
is the first thing said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch_forge.records.outcomes import ErrorStats
from torch_forge.records.session import ModelCheck, RegionResult, SessionReport

VERDICTS: Mapping[str, str] = {"installed": "installed", "kept": "kept eager", "failed": "failed"}
MIN_SHARE = 0.005
"""What was left alone below half a per cent of the time is counted, not listed."""


@dataclass(frozen=True)
class Row:
    """One region."""

    region: str
    module: str
    share: float
    """Of the model's device time, 0 to 1."""
    eager_us: float
    inductor_us: float | None
    forge_us: float | None
    bound_us: float
    percent_of_bound: float | None
    """Of the kernel where there is one, else of eager."""
    verdict: str
    """``installed``, ``kept eager``, ``failed``, ``undone``."""
    why: str
    details: str
    """Calls, candidates by outcome, who wrote the kernel, its error; one line."""


@dataclass(frozen=True)
class ReportData:
    """Everything a report says, in the order in which it is said."""

    title: str
    headline: str
    """The outcome in one sentence."""
    facts: tuple[tuple[str, str], ...]
    """Device, versions, policy, date."""
    rows: tuple[Row, ...]
    model: tuple[tuple[str, str], ...]
    """The whole model before and after; empty if nothing was installed."""
    left: tuple[tuple[str, float, str], ...]
    """(what, share, why) of what was not tried."""
    stages: tuple[tuple[str, float], ...]
    """(stage, seconds)."""
    notes: tuple[str, ...]
    advice: tuple[str, ...]
    """Where the cache is, how to revert."""


def summarize(
    report: SessionReport, *, cache_dir: Path | None = None, modules: Mapping[str, str] | None = None
) -> ReportData:
    """Put a report into words.

    cache_dir: the cache in use, if one was. modules: module class by region name, where the caller knows it.
    """
    undone = report.check is not None and not report.check.accepted
    rows = tuple(_row(region, (modules or {}).get(region.name, ""), undone) for region in report.regions)
    return ReportData(
        title=f"torch_forge: {report.model} on {report.device.name}",
        headline=_headline(report, undone),
        facts=_facts(report),
        rows=rows,
        model=_model(report.check, report.policy),
        left=tuple((left.what, left.share, left.why) for left in report.left if left.share >= MIN_SHARE),
        stages=tuple(report.stage_seconds.items()),
        notes=_notes(report),
        advice=_advice(report, cache_dir, undone),
    )


def _row(region: RegionResult, module: str, undone: bool) -> Row:
    installed = region.verdict == "installed"
    reached_us = region.forge_us if region.forge_us is not None else region.eager_us
    return Row(
        region=region.name,
        module=module,
        share=region.share,
        eager_us=region.eager_us,
        inductor_us=region.inductor_us,
        forge_us=region.forge_us,
        bound_us=region.bound_us,
        percent_of_bound=100.0 * region.bound_us / reached_us if reached_us > 0 and region.bound_us > 0 else None,
        verdict="undone" if installed and undone else VERDICTS.get(region.verdict, region.verdict),
        why=region.why,
        details=_details(region),
    )


def _details(region: RegionResult) -> str:
    parts = [_plural(region.calls, "call") + " per run"]
    if region.from_cache:
        parts.append("from the cache")
    elif region.outcomes:
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in region.outcomes.items())
        parts.append(f"{_plural(sum(region.outcomes.values()), 'candidate')} ({outcomes}) in {region.seconds:.1f} s")
    if region.origin:
        parts.append(f"kernel by {region.origin}")
    if region.error is not None and region.eager_error is not None:
        parts.append(f"error {_error_ratio(region.error, region.eager_error)}")
    return "; ".join(parts)


def _error_ratio(error: ErrorStats, eager: ErrorStats) -> str:
    """Against eager's own, since that is what the policy judges."""
    if eager.rms > 0:
        return f"{error.rms / eager.rms:.2f}x eager's own"
    return "none, as eager" if error.rms == 0 else f"{error.rms:.2g} where eager has none"


def _headline(report: SessionReport, undone: bool) -> str:
    total = len(report.regions)
    installed = [r for r in report.regions if r.verdict == "installed"]
    if undone and report.check is not None:
        return f"0 of {_plural(total, 'region')} replaced: installed, measured as a whole and undone ({report.check.why})."
    if not total:
        return "0 regions replaced: nothing in this model was worth a kernel. It runs as it did before."
    if not installed:
        counts = {verdict: sum(r.verdict == name for r in report.regions) for name, verdict in VERDICTS.items()}
        said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
        return f"0 of {_plural(total, 'region')} replaced ({said}). The model runs as it did before."
    gain = f" The model is {report.check.speedup:.2f}x as fast as before." if report.check else ""
    return f"{len(installed)} of {_plural(total, 'region')} replaced.{gain}"


def _facts(report: SessionReport) -> tuple[tuple[str, str], ...]:
    device = report.device
    unit = "SMs" if device.type == "cuda" else "threads"
    return (
        ("device", f"{device.name} ({device.arch}, {device.units} {unit}, copy {device.copy_gb_per_s:.0f} GB/s)"),
        ("versions", ", ".join(f"{name} {version}" for name, version in report.versions.items())),
        ("policy", report.policy),
        ("date", report.date),
    )


def _model(check: ModelCheck | None, policy: str) -> tuple[tuple[str, str], ...]:
    if check is None:
        return ()
    interval = f"95 % interval {check.speedup_low:.2f}x to {check.speedup_high:.2f}x"
    return (
        ("before", f"{check.eager_ms:.3f} ms"),
        ("after", f"{check.forge_ms:.3f} ms"),
        ("speedup", f"{check.speedup:.2f}x ({interval})"),
        ("forged kernels", f"{_plural(check.engaged, 'call')} in one run"),
        ("output error", f"{check.output_error:.2f}x eager's own (policy {policy})"),
        ("decision", f"{'accepted' if check.accepted else 'undone'}: {check.why}"),
    )


def _notes(report: SessionReport) -> tuple[str, ...]:
    notes = list(report.notes)
    small = [left for left in report.left if left.share < MIN_SHARE]
    if small:
        share = sum(left.share for left in small)
        notes.append(f"{_plural(len(small), 'smaller item')} left alone, together {share:.1%} of the time")
    if not report.complete:
        notes.append("stopped before every region was tried; what was found by then is kept")
    return tuple(notes)


def _advice(report: SessionReport, cache_dir: Path | None, undone: bool) -> tuple[str, ...]:
    advice = []
    if cache_dir is not None:
        advice.append(f"Cache: {cache_dir} (`torch-forge cache info` lists it; deleting the directory clears it).")
    if not undone and any(r.verdict == "installed" for r in report.regions):
        advice.append("Undo: result.revert() puts the model back as it was; TORCH_FORGE_DISABLE=1 keeps it so.")
    return tuple(advice)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
