"""One candidate on a list of cases, over as many workers as it takes.

One worker runs all configs on all cases. If it dies, the journal says on which config; that one gets the blame, those that
were through are judged, and the others are run again.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torch_forge.machine.workers import Outcome, TaskDied, TaskDone, WorkerPool
from torch_forge.records.codec import to_plain
from torch_forge.records.kernels import Built
from torch_forge.records.outcomes import CaseResult, Crashed, Mismatch, Refused, TimedOut, Verdict
from torch_forge.validation.expected import Prepared
from torch_forge.validation.gates import GATES, Evidence, read_journal

TASK = "torch_forge.validation.tasks:run_candidate"
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

    def run(self, configs: Sequence[int]) -> dict[int, Found]:
        """One entry per config."""
        found: dict[int, Found] = {}
        left, deaths = list(configs), 0
        while left:
            scratch = Path(tempfile.mkdtemp(prefix="torch_forge-judge-"))
            try:
                outcome = self._in_worker(left, scratch)
                reports, running = _notes(scratch)
                found.update(self._weigh(left, reports, scratch, complete=isinstance(outcome, TaskDone)))
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
            left = [c for c in left if c not in found]
            if not left:
                break
            deaths += 1
            guilty = [running] if running in left and deaths < MAX_DEATHS else left
            found.update({c: _death(outcome) for c in guilty})
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
        }
        return self.pool.run(TASK, payload, timeout_s=self._limit_s(len(configs)), scratch=scratch)

    def _limit_s(self, configs: int) -> float:
        """Generous for what an honest run takes: starting CUDA, drawing inputs, kernels many times slower than eager."""
        drawn = sum(s.numel for p, _ in self.cases for s in p.case.problem.graph.inputs)
        start_s = 40.0 if self.device.type == "cuda" else 8.0
        runs_s = sum(2 * configs * (20 * p.eager_s + 0.02) for p, _ in self.cases)
        return min(self.timeout_s, start_s + runs_s + drawn / 10e6 * (1 + configs / 10))

    def _weigh(
        self, configs: Sequence[int], reports: Mapping[tuple[int, int], Mapping[str, Any]], scratch: Path, *, complete: bool
    ) -> dict[int, Found]:
        """Judge what is in the scratch folder; a config without all its reports is left out unless they are ``complete``."""
        done: dict[tuple[str, str], CaseResult | Refused | Mismatch] = {}
        found: dict[int, Found] = {}
        for config in configs:
            results: list[CaseResult] = []
            for number, (prepared, _) in enumerate(self.cases):
                if prepared.case.offset_elements and config != 0:
                    continue
                report = reports.get((number, config))
                if report is None:
                    if complete:
                        found[config] = Refused(0, f"no report of {prepared.case.name}")
                    break
                verdict = _first_verdict(Evidence(prepared, report, scratch, done, results))
                if verdict is not None:
                    found[config] = verdict
                    break
            else:
                found[config] = results
        return found


def _first_verdict(evidence: Evidence) -> Verdict | None:
    return next((verdict for _, gate in GATES if (verdict := gate(evidence)) is not None), None)


def _notes(scratch: Path) -> tuple[dict[tuple[int, int], dict[str, Any]], int | None]:
    """Reports by case and config, and the config that was begun and not ended."""
    reports: dict[tuple[int, int], dict[str, Any]] = {}
    running: int | None = None
    for note in read_journal(scratch):
        case, config = note.get("case"), note.get("config")
        if not isinstance(case, int) or not isinstance(config, int):
            continue
        if note.get("event") == "begin":
            running = config
        else:
            reports[case, config] = note
            running = None
    return reports, running


def _death(outcome: Outcome) -> Verdict:
    if isinstance(outcome, TaskDied):
        return Crashed(outcome.signal, outcome.exit_status, f"{outcome.exception}\n{outcome.log}".strip())
    assert not isinstance(outcome, TaskDone)
    return TimedOut(outcome.limit_s, outcome.log)
