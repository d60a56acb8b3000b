"""The judge: is a built candidate right? It owns seeds, expected values and bounds, and never loads the candidate.

What a candidate may be judged on differs (a kernel for one exact workload is not asked about other sizes), so the judge
prepares cases once and gives each candidate those that it claims to serve.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from torch_forge.machine.toolchain import Toolchain
from torch_forge.machine.workers import WorkerPool
from torch_forge.records.device import DeviceInfo
from torch_forge.records.gates import GATES, GatesRun, Stage, checked_names
from torch_forge.records.kernels import Built
from torch_forge.records.outcomes import CaseResult, Crashed, Mismatch, Passed, Refused, Verdict
from torch_forge.records.problem import Problem
from torch_forge.records.program import Lowered
from torch_forge.settings import Settings
from torch_forge.validation.cases import PLAIN
from torch_forge.validation.conditions import Conditions, conditions, relaxations
from torch_forge.validation.expected import Prepared, wrong_with
from torch_forge.validation.preparation import Preparation
from torch_forge.validation.sanitize import SanitizerReport, SanitizerRun, sanitize
from torch_forge.validation.trial import Trial

_BATCH_BYTES = 2 << 30
"""Output files of one worker run, at most about this much."""

Served = tuple[Prepared, list[int]]
"""A case with the ``dims[]`` that the candidate is given for it."""


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
        off: Collection[str] = (),
    ) -> None:
        """
        lowered: the problem's loop form, which a template's kernel takes its dims from.
        seed: decides all inputs. off: names of gates to leave out. Raises UsageError on a name that cannot be.
        """
        self.problem = problem
        self._off = checked_names(off)
        self._pool, self._settings, self._seed = pool, settings, seed
        self._device = torch.device(device.type, device.index) if device.type == "cuda" else torch.device("cpu")
        self._preparation = Preparation(problem, lowered, self._device, seed, self._off)
        self._conditions = conditions(self._off)

    @property
    def weaknesses(self) -> tuple[str, ...]:
        """Wrong results that no quick case can tell from the right one; known after the first verdict."""
        return self._preparation.weaknesses

    @property
    def gates(self) -> GatesRun:
        """What every candidate has to pass here to be right."""
        names = [g.name for g in GATES if g.stage is Stage.RIGHT and g.name not in _ELSEWHERE]
        return GatesRun(tuple(n for n in names if n not in self._off), tuple(n for n in names if n in self._off))

    def check(self, built: Built, config: int = 0, *, thorough: bool = False, blame: bool = False) -> Verdict:
        """The verdict on one config. blame: find out by further runs which gate a wrong result failed."""
        verdict = self.verdicts(built, (config,), thorough=thorough)[config]
        return self._blamed(built, config, verdict, thorough) if blame else verdict

    def verdicts(self, built: Built, configs: Sequence[int] | None = None, *, thorough: bool = False) -> dict[int, Verdict]:
        """The verdict on each config, all of them by default.

        Large workloads are judged on a smaller one of the same class, if the candidate serves it.
        thorough: also the exact workload, further distributions, other bytes under the same pointers and, for a kernel that
        serves a class of shapes, other sizes.
        Raises CaptureError if the problem cannot be computed in float64.
        """
        configs = tuple(range(len(built.candidate.configs)) if configs is None else configs)
        results: dict[int, list[CaseResult]] = {c: [] for c in configs}
        final: dict[int, Verdict] = {}
        groups = [group for stage in self._stages(built, thorough) for group in _batches(stage, len(configs))]
        for number, group in enumerate(groups):
            left = [c for c in configs if c not in final]
            trial = self._trial(built, group, self._conditions, closely=thorough and number == 0)
            for config, found in (trial.run(left) if left else {}).items():
                if isinstance(found, list):
                    results[config] += found
                else:
                    final[config] = found
        return {c: final.get(c) or self._passed(results[c]) for c in configs}

    def _passed(self, results: Sequence[CaseResult]) -> Verdict:
        """Nothing was wrong; without the gates of all cases there may be nothing that was looked at."""
        return Passed(tuple(results)) if results or self._off else Refused(0, "it serves none of the cases", gate=PLAIN)

    def check_timed(self, inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> str | None:
        """What is wrong with the results of a timed call; for ``benchmarking.confirm``."""
        found = wrong_with(self.problem, inputs, results, self._seed)
        return None if found is None else f"output {found.output} at {list(found.index)}: {found.reason}"

    def sanitized(
        self, built: Built, config: int, *, toolchain: Toolchain | None, staging_root: Path, timeout_s: float
    ) -> SanitizerReport:
        """What the sanitizers find on a few small cases. A Python candidate has no source for them."""
        if toolchain is None or built.candidate.call is not None:
            why = "no compiler here" if toolchain is None else "not for Python candidates"
            return SanitizerReport((), {"all": why}, None, 0.0)
        stages = self._stages(built, thorough=True)
        runs = [SanitizerRun(p.case, tuple(dims)) for stage in stages for p, dims in stage]
        fitting = [r for r in runs if r.nbytes <= _SANITIZED_BYTES and (config == 0 or not r.case.misaligned)]
        kinds = [[r for r in fitting if r.case.gate == gate] for gate in _TELLING]
        chosen = [min(kind, key=lambda r: r.nbytes) for kind in kinds if kind][:_SANITIZED_CASES]
        if not chosen:
            return SanitizerReport((), {"all": f"every case is larger than {_SANITIZED_BYTES >> 20} MiB"}, None, 0.0)
        return sanitize(
            built,
            config,
            chosen,
            toolchain=toolchain,
            pool=self._pool,
            staging_root=staging_root,
            timeout_s=timeout_s,
            device=self._device,
        )

    def _trial(self, built: Built, cases: Sequence[Served], under: Conditions, *, closely: bool) -> Trial:
        limit_s = self._settings.trial_timeout_s
        return Trial(self._pool, built, tuple(cases), self._device, limit_s, under, closely=closely, off=self._off)

    def _stages(self, built: Built, thorough: bool) -> list[list[Served]]:
        """Quick cases, then the rest, with what the candidate is given for each that it claims to serve."""
        candidate = built.candidate
        stages = [self._preparation.quick(candidate)]
        if thorough:
            stages.append(self._preparation.rest(candidate, built.library_sha256))
        return [[(p, d) for p in stage if (d := self._preparation.dims(candidate, p.case)) is not None] for stage in stages]

    def _blamed(self, built: Built, config: int, verdict: Verdict, thorough: bool) -> Verdict:
        """The verdict with the gate whose condition makes the difference: without that condition the result is right.

        What is wrong with ordinary inputs may be wrong only because of what surrounds them, of what the output held, or of
        what was computed before.
        """
        if not isinstance(verdict, Mismatch | Crashed) or verdict.gate not in _UNEXPLAINED:
            return verdict
        cases = (c for stage in self._stages(built, thorough) for c in stage)
        failed = next((c for c in cases if c[0].case.name == verdict.case), None)
        for gate, easier in relaxations(self._conditions):
            if failed is not None:
                found = self._trial(built, [failed], easier, closely=False).run([config])[config]
                if isinstance(found, list):
                    return replace(verdict, gate=gate)
        return verdict


_SANITIZED_BYTES = 8 << 20
"""Sanitizers make a kernel tens of times slower."""
_SANITIZED_CASES = 3
_TELLING = ("misaligned", "hidden sizes", "other sizes", PLAIN)
"""Cases on which accesses go wrong most likely; the smallest of each kind."""
_ELSEWHERE = frozenset({"result form", "own work", "sanitizers"})
"""Gates that are not this module's."""
_UNEXPLAINED = frozenset({PLAIN, "survives", "other sizes", "hidden sizes"})
"""Gates whose failure may have a more telling cause."""


def _batches(cases: list[Served], configs: int) -> list[list[Served]]:
    """Cases in groups whose output files, at their most, stay within a limit; one case at least."""
    groups: list[list[Served]] = []
    held = 0
    for entry in cases:
        nbytes = 2 * configs * sum(s.numel * s.itemsize for s in entry[0].case.problem.graph.output_specs)
        if not groups or held + nbytes > _BATCH_BYTES:
            groups.append([])
            held = 0
        groups[-1].append(entry)
        held += nbytes
    return groups
