"""One candidate on a list of cases, over as many workers as it takes.

One worker runs all configs on all cases. If it dies, the journal says on which config; that one gets the blame, those that
were through are judged, and the others are run again.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from torch_forge.machine.leftovers import demand_room
from torch_forge.machine.workers import Outcome, TaskDied, TaskDone, WorkerPool
from torch_forge.records.codec import to_plain
from torch_forge.records.kernels import Built
from torch_forge.records.outcomes import CaseResult, Crashed, Mismatch, Refused, TimedOut, Verdict
from torch_forge.validation.cases import PLAIN
from torch_forge.validation.conditions import Conditions
from torch_forge.validation.expected import Prepared
from torch_forge.validation.gates import Evidence, first_verdict, read_journal

TASK = "torch_forge.validation.tasks:run_candidate"
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR")
"""Variables that say where torch and triton keep what they compile."""
SPARE_BYTES = 4 << 30
"""Address space that a CPU candidate may take besides what its tensors and threads do."""
THREAD_BYTES = 256 << 20
MAX_DEATHS = 3
"""After so many dead workers the configs that are left share the last verdict."""

Found = list[CaseResult] | Verdict
"""What is right, case by case, or what is wrong."""


@dataclass(frozen=True)
class Trial:
    """What does not change from worker to worker."""

    pool: WorkerPool
    built: Built
    cases: tuple[tuple[Prepared, list[int]], ...]
    """With the ``dims[]`` of each."""
    device: torch.device
    timeout_s: float
    """At most; less if an honest run takes much less."""
    conditions: Conditions
    closely: bool = False
    """Also repeat the first case, look at early results again and for traces."""
    off: Collection[str] = ()
    """Gates to leave out."""

    def run(self, configs: Sequence[int]) -> dict[int, Found]:
        """One entry per config."""
        if self.conditions.shared or len(self.cases) == 1:
            return self._run(configs)
        found: dict[int, Found] = {c: [] for c in configs}
        for number, one in enumerate(self.cases):
            alone = replace(self, cases=(one,), closely=self.closely and number == 0)
            for config, new in alone._run([c for c in configs if isinstance(found[c], list)]).items():
                old = found[config]
                found[config] = [*old, *new] if isinstance(old, list) and isinstance(new, list) else new
        return found

    def _run(self, configs: Sequence[int]) -> dict[int, Found]:
        found: dict[int, Found] = {}
        left, deaths = list(configs), 0
        while left:
            scratch = self.pool.folder("judge")
            try:
                outcome = self._in_worker(left, scratch)
                notes = _Notes.read(scratch)
                found.update(self._weigh(left, notes, scratch, complete=isinstance(outcome, TaskDone)))
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
            left = [c for c in left if c not in found]
            if not left:
                break
            demand_room(scratch.parent)
            deaths += 1
            case, running = notes.running
            guilty = [running] if running in left and deaths < MAX_DEATHS else left
            found.update({c: self._death(outcome, case) for c in guilty})
            left = [c for c in left if c not in guilty]
        return found

    def _in_worker(self, configs: Sequence[int], scratch: Path) -> Outcome:
        payload = {
            "library": self.built.library,
            "device": str(self.device),
            "threads": torch.get_num_threads(),
            "workspace_bytes": self.built.candidate.workspace_bytes,
            "configs": list(configs),
            "cases": [{"case": to_plain(p.case), "dims": dims} for p, dims in self.cases],
            "conditions": to_plain(self.conditions),
            "closely": self.closely,
            "call": self.built.candidate.call,
            "own_work": "own work" not in self.off,
            "lenient": "result form" in self.off,
        }
        python = self.built.candidate.call is not None  # it may bring source of its own to compile
        confine = self.pool.confinement(cuda=self.device.type == "cuda", compilers=python, readable=(self.built.library,))
        limit_s = self._limit_s(len(configs))
        env = {name: str(scratch / "caches") for name in CACHES} if python else {}
        memory_bytes = None if python or self.device.type == "cuda" else self._memory_bytes()
        return self.pool.run(
            TASK, payload, timeout_s=limit_s, env=env, scratch=scratch, memory_bytes=memory_bytes, confine=confine
        )

    def _memory_bytes(self) -> int:
        """Generous for what an honest run takes: every tensor many times over, a stack and an arena for each thread."""
        graphs = [p.case.problem.graph for p, _ in self.cases]
        tensors = max(sum(s.numel * s.itemsize for s in (*g.inputs, *g.output_specs)) for g in graphs)
        return SPARE_BYTES + torch.get_num_threads() * THREAD_BYTES + 32 * tensors + self.built.candidate.workspace_bytes

    def _limit_s(self, configs: int) -> float:
        """Generous for what an honest run takes: starting CUDA, drawing inputs, kernels many times slower than eager."""
        drawn = sum(s.numel for p, _ in self.cases for s in p.case.problem.graph.inputs)
        start_s = 40.0 if self.device.type == "cuda" or self.built.candidate.call is not None else 12.0
        runs_s = sum(2 * configs * (20 * p.eager_s + 0.02) for p, _ in self.cases)
        close_s = 2.0 + 20 * configs * (20 * self.cases[0][0].eager_s + 0.02) if self.closely else 0.0
        return min(self.timeout_s, start_s + runs_s + close_s + drawn / 10e6 * (1 + configs / 10))

    def _weigh(self, configs: Sequence[int], notes: _Notes, scratch: Path, *, complete: bool) -> dict[int, Found]:
        """Judge what is in the scratch folder; a config without all its reports is left out unless they are ``complete``."""
        done: dict[tuple[str, str], CaseResult | Refused | Mismatch] = {}
        found: dict[int, Found] = {}
        for config in configs:
            results: list[CaseResult] = []
            for number, (prepared, _) in enumerate(self.cases):
                if prepared.case.misaligned and config != 0:
                    continue
                report = notes.reports.get((number, config))
                if report is None:
                    if complete:
                        found[config] = Refused(0, f"no report of {prepared.case.name}")
                    break
                verdict = first_verdict(Evidence(prepared, report, scratch, done, self.off, results))
                if verdict is not None:
                    found[config] = verdict
                    break
            else:
                # What it does after its last case is part of the story: it is not through if the process died then.
                if complete or not self.closely:
                    found[config] = self._afterwards(config, notes) or results
        return found

    def _afterwards(self, config: int, notes: _Notes) -> Verdict | None:
        """What shows only when all cases are through."""
        changed = [n for (n, c), kept in notes.late.items() if c == config and not kept]
        if changed and "kept outputs" not in self.off:
            name = self.cases[changed[0]][0].case.name
            return Refused(0, f"the result of an earlier call changed later ({name})", gate="kept outputs")
        if notes.traces and "leaves no trace" not in self.off:
            return Refused(0, "; ".join(notes.traces), gate="leaves no trace")
        return None

    def _death(self, outcome: Outcome, case: int | None) -> Verdict:
        """The verdict on whoever was running when the worker died; what was special about the case is to blame."""
        running = self.cases[case][0].case if case is not None and case < len(self.cases) else None
        gate, name = (running.gate, running.name) if running is not None else (PLAIN, "")
        gate = "survives" if gate == PLAIN else gate
        if isinstance(outcome, TaskDied):
            return Crashed(outcome.signal, outcome.exit_status, f"{outcome.exception}\n{outcome.log}".strip(), gate, name)
        assert not isinstance(outcome, TaskDone)
        return TimedOut(outcome.limit_s, outcome.log, gate, name)


@dataclass
class _Notes:
    """The worker's journal, as far as it is well-formed."""

    reports: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    """By case and config."""
    late: dict[tuple[int, int], bool] = field(default_factory=dict)
    traces: list[str] = field(default_factory=list)
    running: tuple[int | None, int | None] = (None, None)
    """Case and config that were begun and not ended."""

    @classmethod
    def read(cls, scratch: Path) -> _Notes:
        notes = cls()
        for note in read_journal(scratch):
            case, config = note.get("case"), note.get("config")
            if note.get("event") == "traces":
                notes.traces += [str(t) for t in note.get("found", [])]
            elif not isinstance(case, int) or not isinstance(config, int):
                continue
            elif note.get("event") == "begin":
                notes.running = (case, config)
            elif note.get("event") == "late":
                notes.late[case, config] = note.get("kept") is True
            else:
                notes.reports[case, config] = note
                notes.running = (None, None)
        return notes
