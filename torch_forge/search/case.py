"""One problem while it is being worked on, and what was decided about it in the end."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from torch_forge.caching.journal import Journal
from torch_forge.records.entry import KernelFacts
from torch_forge.records.kernels import Binding, Candidate
from torch_forge.records.outcomes import Passed, Trial
from torch_forge.records.problem import Problem
from torch_forge.records.program import Lowered, NotLowered
from torch_forge.records.session import RegionResult
from torch_forge.records.tensors import TensorSpec
from torch_forge.search.workshop import Deadline, Workshop


@dataclass(frozen=True)
class Forged:
    """What was decided for one workload; ``binding`` is None if nothing is to be installed."""

    problem: Problem
    result: RegionResult
    binding: Binding | None = None
    kernel_library: str = ""
    glue_library: str = ""


@dataclass
class Case:
    """One problem in one workshop."""

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
        """The loop form, if there is one."""
        return self.lowered if isinstance(self.lowered, Lowered) else None

    def dims(self, program: str | None) -> tuple[int, ...]:
        """``dims[]`` of this workload for a kernel of this program; every input size in order for a free-form one (None)."""
        if program is not None:
            assert self.form is not None
            return self.form.values
        return tuple(n for s in self.problem.graph.inputs for n in s.shape)

    @property
    def largest_span(self) -> int:
        """Elements from the first to the last of the largest tensor."""
        graph = self.problem.graph
        return max((_span(s) for s in (*graph.inputs, *graph.output_specs)), default=0)

    @property
    def seconds(self) -> float:
        """Wall time so far."""
        return time.monotonic() - self.began_s

    def binding(self, config: int, kernel: Candidate | KernelFacts) -> Binding:
        """This workload bound to one config, config 0 where a pointer is not aligned for it."""
        graph = self.problem.graph
        return Binding(
            inputs=graph.inputs,
            outputs=graph.output_specs,
            dims=self.dims(kernel.program),
            config=config,
            align_bytes=kernel.configs[config].align_bytes,
            fallback_config=0,
            workspace_bytes=kernel.workspace_bytes,
        )

    def record(self, trial: Trial) -> None:
        """Note a finished trial; one that failed for good also in the journal: a run after a kill does not repeat it."""
        self.trials.append(trial)
        if not isinstance(trial.verdict, Passed) and not trial.doubtful:
            self.journal.append(trial)
        best = trial.best
        self.shop.progress.candidate(trial.outcome, best.candidate.median_us if best else None)

    @property
    def journal(self) -> Journal:
        """Failed trials of an unfinished earlier run."""
        cache = self.shop.cache
        return cache.journal(self.shop.key(self.problem), self.problem.workload) if cache is not None else Journal(None)

    def fastest(self) -> Trial | None:
        """The fastest right trial."""
        timed = [(t.best.candidate.median_us, k) for k, t in enumerate(self.trials) if t.best is not None]
        return self.trials[min(timed)[1]] if timed else None


def _span(spec: TensorSpec) -> int:
    return 1 + sum((n - 1) * abs(s) for n, s in zip(spec.shape, spec.stride, strict=True)) if spec.numel else 0
