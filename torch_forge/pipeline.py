"""The whole run on one model: profile, capture, choose, forge, install, check. One line a stage."""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from torch_forge.dispatch.graph import ModelInstall, captured_graphs
from torch_forge.errors import CaptureError, ForgeError, ToolchainError, UsageError, WorkerError
from torch_forge.generation.llm.author import LLMAuthor
from torch_forge.generation.llm.litellm_client import LiteLLMClient
from torch_forge.graphs.partition import FxRegion, Rejected, regions
from torch_forge.installing import Installed
from torch_forge.model_check import check_model
from torch_forge.profiling.profile import profile
from torch_forge.profiling.state import preserved
from torch_forge.profiling.workload import Workload
from torch_forge.records.problem import Policy
from torch_forge.records.profile import LeftAlone, Selection
from torch_forge.records.program import Lowered
from torch_forge.records.session import ModelCheck, RegionResult, SessionReport
from torch_forge.report import markdown, text
from torch_forge.report.files import save
from torch_forge.report.progress import make_progress
from torch_forge.report.summarize import summarize
from torch_forge.search.forge import forge_problem
from torch_forge.search.workshop import Deadline, Workshop
from torch_forge.selection.select import select
from torch_forge.settings import Settings
from torch_forge.validation.static.source import source_reasons
from torch_forge.version import __version__

log = logging.getLogger("torch_forge")


@dataclass
class TuneResult:
    """What ``autotune`` did, and the way back."""

    report: SessionReport
    _cache_dir: Path | None = field(default=None, repr=False)
    _install: ModelInstall | None = field(default=None, repr=False)
    _installed: Installed | None = field(default=None, repr=False)

    def summary(self) -> str:
        """The report as text for a terminal or a log."""
        return text.render(summarize(self.report, cache_dir=self._cache_dir))

    def save(self, path: str | Path) -> Path:
        """Write the report; the suffix chooses the form (.md, .json, .txt)."""
        return save(self.report, path, data=summarize(self.report, cache_dir=self._cache_dir))

    def revert(self) -> None:
        """The model exactly as it was; calling it again is harmless."""
        if self._install is not None:
            self._install.revert()
        if self._installed is not None:
            self._installed.release()
        self._install = self._installed = None

    def _repr_markdown_(self) -> str:
        return markdown.render(summarize(self.report, cache_dir=self._cache_dir))


def autotune(
    model: torch.nn.Module,
    sample: Any,
    *,
    budget: float | None = None,
    policy: str | Policy = Policy.EAGER_EQUIVALENT,
    progress: Any = None,
    llm: str | None = None,
    settings: Settings | None = None,
    only_cached: bool = False,
) -> TuneResult:
    """Make ``model`` faster in place for calls like ``sample``, if that can be proved; see ``TuneResult.report``.

    sample: a tensor, a tuple of positional arguments, a dict of keyword arguments, or ``torch_forge.Call``. Gradients are
    forged too if the call is made with grad enabled and something requires them. budget: seconds.
    policy: how far numbers may be from eager's (``records.problem.Policy``). progress: ``auto``, ``on``, ``off`` or a
    callable.
    llm: a model name for litellm, to try kernels beyond the templates. only_cached: build and time nothing,
    use what the cache holds. Ctrl-C installs the best so far.

    Raises UsageError for a sample that cannot be used and DeviceError for a device that cannot; an exception of the model
    itself passes through. A model that cannot be captured is left as it is, and the report says why.
    """
    settings = settings or Settings.resolve(budget_s=budget)
    if not isinstance(model, torch.nn.Module):
        raise UsageError(
            "autotune takes a torch.nn.Module",
            advice="For a function use torch_forge.forge(fn, sample) or @torch_forge.optimize.",
        )
    workload = Workload.of(model, sample)
    where = workload.device
    name = f"{where.type}:{where.index or 0}" if where.type == "cuda" else where.type
    with Workshop.open(
        name, settings, policy=Policy.of(policy), progress=make_progress(progress or settings.progress)
    ) as shop:
        if only_cached:
            shop.toolchain = None
        run = _Run(model, workload, shop, Deadline.after(settings.budget_s))
        try:
            return run.tune(LLMAuthor(LiteLLMClient(llm), refuse=source_reasons) if llm else None)
        finally:
            shop.progress.close()


@dataclass
class _Run:
    """One autotune call."""

    model: torch.nn.Module
    workload: Workload
    shop: Workshop
    deadline: Deadline
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    results: list[RegionResult] = field(default_factory=list)
    complete: bool = True

    def tune(self, author: LLMAuthor | None) -> TuneResult:
        if self.shop.settings.disabled:
            self.notes.append("TORCH_FORGE_DISABLE is set: the model was left as it is")
            return self._result((), None)
        try:
            with self._stage("profile"):
                costs = profile(self.model, self.workload.call, self.shop.device, note=self.notes.append)
            with self._stage("capture"):
                found, rejected = self._capture()
        except CaptureError as error:
            if self.shop.settings.strict:
                raise
            log.warning("%s", error.explain())
            self.notes.append(error.explain())
            return self._result((), None)
        chosen = select(found, rejected, costs, self.shop.device)
        installed = Installed(self.shop)
        with self._stage("forge"):
            self._forge(chosen, found, installed, author)
        if not len(installed):
            return self._result(chosen.left, None)
        with self._stage("install"):
            install = ModelInstall(self.model, installed.lookup, policy=self.shop.policy)
            install.admit(self.workload.call.args, self.workload.call.kwargs)
        with self._stage("check"):
            check = check_model(self.workload, install, installed, self.shop)
        if check.accepted:
            install.install()
            return self._result(chosen.left, check, install, installed)
        installed.release()
        return self._result(chosen.left, check)

    def _capture(self) -> tuple[list[FxRegion], list[Rejected]]:
        """The regions of every graph that one call of the model needs; nothing of the user's is changed."""
        with preserved(self.model, self.workload.call.args, self.workload.call.kwargs):
            graphs = captured_graphs(
                lambda call: call(*self.workload.call.args, **self.workload.call.kwargs), self.model._call_impl
            )
        found: list[FxRegion] = []
        rejected: list[Rejected] = []
        for graph in graphs:
            some, refused = regions(graph, policy=self.shop.policy)
            found += some
            rejected += refused
        return found, rejected

    def _forge(self, chosen: Selection, found: list[FxRegion], installed: Installed, author: LLMAuthor | None) -> None:
        """Every chosen region within the budget; an interrupt, or a machine that stops working, keeps what has been won."""
        lowered: dict[str, Lowered] = {r.problem.workload: r.lowered for r in found}
        try:
            for position, region in enumerate(chosen.regions):
                if self.deadline.passed:
                    self.complete = False
                    left = len(chosen.regions) - position
                    budget = f"the budget of {self.shop.settings.budget_s:.0f} s"
                    self.notes.append(f"{budget} ended with {left} regions untried; run again to go on")
                    return
                self.shop.progress.region(region.problem.name, position + 1, len(chosen.regions))
                share_s = self.deadline.left_s / max(1, len(chosen.regions) - position) * 2
                forged = forge_problem(
                    region.problem,
                    lowered[region.problem.workload],
                    self.shop,
                    calls=region.calls,
                    share=region.share,
                    deadline=self.deadline.within(share_s),
                    author=author,
                )
                self.results.append(forged.result)
                if forged.result.verdict == "installed":
                    installed.add(forged)
        except KeyboardInterrupt:
            self.complete = False
            self.notes.append("interrupted: what was won until then is kept; run again to go on")
        except (ToolchainError, WorkerError) as error:
            if self.shop.settings.strict:
                raise
            self.complete = False
            log.warning("%s", error.explain())
            self.notes.append(f"{error.explain()}\nWhat was won until then is kept; run again to go on.")

    def _result(
        self,
        left: tuple[LeftAlone, ...],
        check: ModelCheck | None,
        install: ModelInstall | None = None,
        installed: Installed | None = None,
    ) -> TuneResult:
        cache_dir = self.shop.settings.cache_dir if self.shop.cache is not None else None
        return TuneResult(self._report(left, check), cache_dir, install, installed)

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        self.shop.progress.stage(name)
        began_s = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = time.monotonic() - began_s

    def _report(self, left: tuple[LeftAlone, ...], check: ModelCheck | None) -> SessionReport:
        versions = {
            "torch": torch.__version__,
            "torch_forge": __version__,
            "python": platform.python_version(),
            "compiler": self.shop.compiler,
        }
        return SessionReport(
            model=self.workload.name,
            device=self.shop.device,
            versions=versions,
            date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            policy=self.shop.policy.value,
            regions=tuple(self.results),
            left=left,
            check=check,
            stage_seconds=self.seconds,
            notes=(*self.shop.notes, *(self.shop.cache.complaints if self.shop.cache is not None else ()), *self.notes),
            complete=self.complete,
        )


__all__ = ["ForgeError", "TuneResult", "autotune"]
