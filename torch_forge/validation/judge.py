"""The judge: is a built candidate right? It owns seeds, expected values and bounds, and never loads the candidate.

What a candidate may be judged on differs (a kernel for one exact workload is not asked about other sizes), so the judge
prepares cases once and gives each candidate those that it claims to serve.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_forge.graphs.lower import lower
from torch_forge.machine.workers import WorkerPool
from torch_forge.records.device import DeviceInfo
from torch_forge.records.kernels import Built, Candidate
from torch_forge.records.outcomes import CaseResult, Passed, Refused, Verdict
from torch_forge.records.problem import Problem
from torch_forge.records.program import Lowered, NotLowered
from torch_forge.settings import Settings
from torch_forge.validation.cases import SPARE, Case, case, full_cases, quick_cases, real_case, resized_cases, smaller
from torch_forge.validation.expected import IMPOSTORS, Prepared, prepare
from torch_forge.validation.gates import GATES
from torch_forge.validation.tolerance import reduction_length
from torch_forge.validation.trial import Trial

_KEEP_BYTES = 1 << 30
"""Expected values of the quick cases up to this size: those of all further cases are kept too, for the next candidate."""
_BATCH_BYTES = 2 << 30
"""Output files of one worker run, at most about this much."""


class Judge:
    """Verdicts on candidates for one problem on one device."""

    def __init__(
        self,
        problem: Problem,
        *,
        lowered: Lowered | None,
        device: DeviceInfo,
        pool: WorkerPool,
        settings: Settings,
        seed: int,
    ) -> None:
        """
        lowered: the problem's loop form, which a template's kernel takes its dims from.
        seed: decides all inputs.
        """
        self.problem = problem
        self._lowered: dict[str, Lowered | None] = {problem.workload: lowered}
        self._info, self._pool, self._settings, self._seed = device, pool, settings, seed
        self._device = torch.device(device.type, device.index) if device.type == "cuda" else torch.device("cpu")
        self._small = smaller(problem, self._same_class)
        self._prepared_for: dict[tuple[str, bool], list[Prepared]] = {}
        self.weaknesses: tuple[str, ...] = ()
        """Wrong results that no quick case can tell from the right one; known after the first verdict."""

    @property
    def gates(self) -> tuple[str, ...]:
        """What every candidate has to pass."""
        return tuple(name for name, _ in GATES)

    def check(self, built: Built, config: int = 0, *, thorough: bool = False) -> Verdict:
        """The verdict on one config."""
        return self.verdicts(built, (config,), thorough=thorough)[config]

    def verdicts(self, built: Built, configs: Sequence[int] | None = None, *, thorough: bool = False) -> dict[int, Verdict]:
        """The verdict on each config, all of them by default.

        Large workloads are judged on a smaller one of the same class, if the candidate serves it.
        thorough: also the exact workload, further distributions and, for a kernel that serves a class of shapes, other
        sizes.
        Raises CaptureError if the problem cannot be computed in float64.
        """
        configs = tuple(range(len(built.candidate.configs)) if configs is None else configs)
        results: dict[int, list[CaseResult]] = {c: [] for c in configs}
        final: dict[int, Verdict] = {}
        for prepared in self._stages(built.candidate, thorough):
            left = tuple(c for c in configs if c not in final)
            served = [(p, dims) for p in prepared if (dims := self._dims(built.candidate, p.case)) is not None]
            for group in _batches(served, len(left)):
                trial = Trial(self._pool, built, tuple(group), self._device, self._settings.trial_timeout_s)
                for config, found in trial.run([c for c in left if c not in final]).items():
                    if isinstance(found, list):
                        results[config] += found
                    else:
                        final[config] = found
        return {c: final.get(c) or _passed(results[c]) for c in configs}

    # --- cases ------------------------------------------------------------------------------------------------------

    def _stages(self, candidate: Candidate, thorough: bool) -> list[list[Prepared]]:
        """Quick cases, then the rest; prepared once for every candidate that is judged on the same problem."""
        stand_in = self._small if self._serves(candidate, self._small) else self.problem
        quick = self._once(stand_in, thorough=False)
        return [quick, self._once(stand_in, thorough=True)] if thorough else [quick]

    def _serves(self, candidate: Candidate, problem: Problem) -> bool:
        return self._dims(candidate, case(problem, "normal", self._seed)) is not None

    def _once(self, problem: Problem, *, thorough: bool) -> list[Prepared]:
        key = (problem.workload, thorough)
        if key not in self._prepared_for:
            self._prepared_for[key] = self._prepare_thorough(problem) if thorough else self._prepare_quick(problem)
        return self._prepared_for[key]

    def _prepare_thorough(self, problem: Problem) -> list[Prepared]:
        cases = full_cases(problem, self._seed, sums=reduction_length(problem.graph) > 1)
        cases += [c for c in resized_cases(problem, self._seed) if self._lower(c.problem) is not None]
        if problem is not self.problem:
            cases.append(real_case(self.problem, self._seed))
        return self._prepared(cases)

    def _prepare_quick(self, problem: Problem) -> list[Prepared]:
        """Cases that can tell zeros and the mean from the right result; more of them until every impostor is told apart."""
        kept = [p for p in self._prepared(quick_cases(problem, self._seed)) if p.told_apart & set(IMPOSTORS[:2])]
        for distribution in SPARE:
            missing = set(IMPOSTORS) - {name for p in kept for name in p.told_apart}
            if not missing:
                break
            spare = self._prepared([case(problem, distribution, self._seed)])
            kept += [p for p in spare if p.told_apart & missing]
        if not kept:  # a result that is constant by its nature
            kept = self._prepared([case(problem, "normal", self._seed)])
        missing = set(IMPOSTORS) - {name for p in kept for name in p.told_apart}
        self.weaknesses = tuple(f"cannot be told from {name}" for name in IMPOSTORS if name in missing)
        return kept

    def _prepared(self, cases: Sequence[Case]) -> list[Prepared]:
        return [p for c in cases if (p := prepare(c, self._device)) is not None]

    def _dims(self, candidate: Candidate, case: Case) -> list[int] | None:
        """``dims[]`` of a case for this candidate; None if it does not claim to serve the case."""
        if candidate.program is None:
            same = case.problem.workload == self.problem.workload
            return [n for spec in case.problem.graph.inputs for n in spec.shape] if same else None
        lowered = self._lower(case.problem)
        if lowered is None or lowered.program.digest != candidate.program:
            return None
        if any(lowered.value(name) != value for name, value in candidate.statics.items()):
            return None
        return list(lowered.values)

    def _same_class(self, other: Problem) -> bool:
        own, its = self._lower(self.problem), self._lower(other)
        return own is not None and its is not None and own.program.digest == its.program.digest

    def _lower(self, problem: Problem) -> Lowered | None:
        if self._lowered.get(problem.workload) is None:
            found = lower(problem)
            self._lowered[problem.workload] = None if isinstance(found, NotLowered) else found
        return self._lowered[problem.workload]


def _passed(results: Sequence[CaseResult]) -> Verdict:
    return Passed(tuple(results)) if results else Refused(0, "it serves none of the cases")


def _batches(cases: list[tuple[Prepared, list[int]]], configs: int) -> list[list[tuple[Prepared, list[int]]]]:
    """Cases in groups whose output files, at their most, stay within a limit; one case at least."""
    groups: list[list[tuple[Prepared, list[int]]]] = []
    held = 0
    for entry in cases:
        nbytes = 2 * configs * sum(s.numel * s.itemsize for s in entry[0].case.problem.graph.output_specs)
        if not groups or held + nbytes > _BATCH_BYTES:
            groups.append([])
            held = 0
        groups[-1].append(entry)
        held += nbytes
    return groups
