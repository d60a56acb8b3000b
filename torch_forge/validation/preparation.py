"""The judge's cases, made once for every candidate that is judged on the same problem."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from torch_forge.graphs.lower import lower
from torch_forge.records.kernels import Candidate
from torch_forge.records.problem import Problem
from torch_forge.records.program import Lowered, NotLowered
from torch_forge.validation.cases import (
    SPARE,
    Case,
    case,
    full_cases,
    hidden_cases,
    pointer_cases,
    quick_cases,
    real_case,
    resized_cases,
    smaller,
)
from torch_forge.validation.expected import IMPOSTORS, Prepared, impostors, prepare
from torch_forge.validation.tolerance import reduction_length


class Preparation:
    """Cases of one problem on one device, with what is expected of each. ``off``: gates whose cases are left out."""

    def __init__(
        self, problem: Problem, lowered: Lowered | None, device: torch.device, seed: int, off: frozenset[str] = frozenset()
    ) -> None:
        self.problem, self._device, self._seed, self._off = problem, device, seed, off
        self._lowered: dict[str, Lowered | None] = {problem.workload: lowered}
        self._made: dict[object, list[Prepared]] = {}
        self._small = smaller(problem, self._same_class)
        self._any_size = smaller(problem, lambda _: True)
        self.weaknesses: tuple[str, ...] = ()
        """Wrong results that no quick case can tell from the right one; known once ``quick`` was called."""

    def quick(self, candidate: Candidate) -> list[Prepared]:
        """A few cases that most wrong kernels fail."""
        stand_in = self._stand_in(candidate)
        return self._once(("quick", stand_in.workload), lambda: self._quick(stand_in))

    def rest(self, candidate: Candidate, artefact: str) -> list[Prepared]:
        """All others. artefact: SHA-256 of the built kernel, which decides the hidden sizes."""
        stand_in = self._stand_in(candidate)
        key = ("rest", stand_in.workload, candidate.any_size)
        hidden = []
        if "hidden sizes" not in self._off and _other_sizes(candidate):
            hidden = hidden_cases(stand_in, self._seed, artefact, self._serves(candidate))
        return self._once(key, lambda: self._rest(stand_in, candidate)) + self._prepared(hidden)

    def dims(self, candidate: Candidate, of: Case) -> list[int] | None:
        """``dims[]`` of a case for this candidate; None if it does not claim to serve the case."""
        if candidate.program is None:
            same = candidate.any_size or of.problem.workload == self.problem.workload
            return [n for spec in of.problem.graph.inputs for n in spec.shape] if same else None
        lowered = self._lower(of.problem)
        if lowered is None or lowered.program.digest != candidate.program:
            return None
        if any(lowered.value(name) != value for name, value in candidate.statics.items()):
            return None
        return list(lowered.values)

    def _stand_in(self, candidate: Candidate) -> Problem:
        """What most cases are drawn for: a smaller problem, if the candidate claims to serve it."""
        if candidate.program is None:
            return self._any_size if candidate.any_size else self.problem
        return self._small if self._serves(candidate)(case(self._small, "normal", self._seed)) else self.problem

    def _serves(self, candidate: Candidate) -> Callable[[Case], bool]:
        return lambda of: self.dims(candidate, of) is not None

    def _once(self, key: object, make: Callable[[], list[Prepared]]) -> list[Prepared]:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def _quick(self, problem: Problem) -> list[Prepared]:
        """Cases that can tell zeros and the mean from the right result; more of them until every impostor is told apart."""
        kept = [p for p in self._prepared(quick_cases(problem, self._seed, self._off)) if p.told_apart & set(IMPOSTORS[:2])]
        wanted = impostors(problem.graph)
        for distribution in SPARE:
            missing = set(wanted) - {name for p in kept for name in p.told_apart}
            if not missing:
                break
            kept += [p for p in self._prepared([case(problem, distribution, self._seed)]) if p.told_apart & missing]
        if not kept:  # a result that is constant by its nature
            kept = self._prepared([case(problem, "normal", self._seed)])
        missing = set(wanted) - {name for p in kept for name in p.told_apart}
        self.weaknesses = tuple(f"cannot be told from {name}" for name in wanted if name in missing)
        return kept

    def _rest(self, problem: Problem, candidate: Candidate) -> list[Prepared]:
        cases = [] if "same pointers" in self._off else pointer_cases(problem, self._seed)
        cases += full_cases(problem, self._seed, sums=reduction_length(problem.graph) > 1, off=self._off)
        if "other sizes" not in self._off and _other_sizes(candidate):
            cases += [c for c in resized_cases(problem, self._seed) if self._serves(candidate)(c)]
        if problem is not self.problem and "real size" not in self._off:
            cases.append(real_case(self.problem, self._seed))
        return self._prepared(cases)

    def _prepared(self, cases: Sequence[Case]) -> list[Prepared]:
        """Those that eager does not refuse, without those that ordinary inputs stand for where that gate is off."""
        kept = [c for c in cases if c.gate not in self._off]
        return [p for c in kept if (p := prepare(c, self._device, deep=c.distribution in _DEEP)) is not None]

    def _same_class(self, other: Problem) -> bool:
        own, its = self._lower(self.problem), self._lower(other)
        return own is not None and its is not None and own.program.digest == its.program.digest

    def _lower(self, problem: Problem) -> Lowered | None:
        if self._lowered.get(problem.workload) is None:
            found = lower(problem)
            self._lowered[problem.workload] = None if isinstance(found, NotLowered) else found
        return self._lowered[problem.workload]


def _other_sizes(candidate: Candidate) -> bool:
    """Whether it claims to serve any other size than the exact workload's."""
    return candidate.program is not None or candidate.any_size


_DEEP = ("normal", "shifted")
"""Distributions on which each input must show its influence."""
