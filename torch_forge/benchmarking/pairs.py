"""Candidate against eager: all configs briefly, the best few at length, the statistics on this side."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_forge.benchmarking.stats import Round, paired, quiet_rounds
from torch_forge.machine.workers import TaskDied, TaskDone, WorkerPool
from torch_forge.records.codec import from_plain, to_plain
from torch_forge.records.device import DeviceInfo
from torch_forge.records.kernels import Built
from torch_forge.records.outcomes import Comparison, Crashed, Refused, TimedOut, Verdict
from torch_forge.records.problem import Problem
from torch_forge.settings import Settings

TASK = "torch_forge.benchmarking.tasks:time_candidate"
FINALISTS = 2
"""Configs that are timed at length."""
QUICK_ROUNDS = 10
FULL_ROUNDS = 100


@dataclass(frozen=True)
class Measured:
    """Timings of the configs that kept giving the right output, and what became of the others."""

    comparisons: tuple[Comparison, ...]
    """Fastest first, finalists before those timed briefly."""
    faults: Mapping[int, Verdict]
    """A fault overrules an earlier verdict: the config was right only while it was judged."""
    quiet: bool = True
    """False: other processes kept taking the cores away, and the figures are only the least disturbed ones."""


class Bench:
    """Comparisons with eager for one problem on one device."""

    def __init__(self, problem: Problem, *, device: DeviceInfo, pool: WorkerPool, settings: Settings) -> None:
        self._problem, self._device, self._pool, self._settings = problem, device, pool, settings

    def compare(
        self,
        built: Built,
        dims: Sequence[int],
        configs: Sequence[int],
        *,
        seed: int,
        budget_s: float = 2.0,
        quick: bool = False,
    ) -> Measured:
        """Time configs against eager, in worker processes.

        dims: ``dims[]`` of this workload. budget_s: seconds of timing, set-up not counted; up to twice that on a busy
        machine. quick: a short look at each config and no more. A new seed gives other inputs and another order.
        """
        if len(configs) <= FINALISTS and not quick:
            return self._run(built, dims, configs, seed, budget_s, FULL_ROUNDS)
        first = self._run(built, dims, configs, seed, budget_s / 4, QUICK_ROUNDS)
        if quick or not first.comparisons:
            return first
        best = [c.config for c in first.comparisons[:FINALISTS]]
        final = self._run(built, dims, best, seed + 1, budget_s * 3 / 4, FULL_ROUNDS)
        rest = [c for c in first.comparisons if c.config not in best]
        return Measured((*final.comparisons, *rest), {**first.faults, **final.faults}, final.quiet)

    def _run(
        self, built: Built, dims: Sequence[int], configs: Sequence[int], seed: int, budget_s: float, rounds: int
    ) -> Measured:
        payload = {
            "problem": to_plain(self._problem),
            "library": built.library,
            "dims": list(dims),
            "configs": list(configs),
            "workspace_bytes": built.candidate.workspace_bytes,
            **bench_payload(self._device, seed=seed, budget_s=budget_s, rounds=rounds),
        }
        confine = self._pool.confinement(cuda=self._device.type == "cuda", readable=(built.library,))
        outcome = self._pool.run(TASK, payload, timeout_s=self._settings.trial_timeout_s, confine=confine)
        if isinstance(outcome, TaskDone):
            shutil.rmtree(outcome.scratch, ignore_errors=True)
            return _measured(outcome.value)
        if isinstance(outcome, TaskDied):
            log = f"{outcome.exception}\n{outcome.log}".strip()
            return Measured((), dict.fromkeys(configs, Crashed(outcome.signal, outcome.exit_status, log)))
        return Measured((), dict.fromkeys(configs, TimedOut(outcome.limit_s, outcome.log)))


def bench_payload(device: DeviceInfo, *, seed: int, budget_s: float, rounds: int) -> dict[str, object]:
    """What every timing task needs to know."""
    return {
        "device": f"cuda:{device.index}" if device.type == "cuda" else "cpu",
        "cache_bytes": device.l2_bytes,
        "threads": torch.get_num_threads(),
        "seed": seed,
        "budget_s": budget_s,
        "max_rounds": rounds,
    }


def _measured(value: Mapping[str, Any]) -> Measured:
    rounds: tuple[Round, ...] = from_plain(tuple[Round, ...], value["rounds"])
    faults: dict[str, str] = from_plain(dict[str, str], value["faults"])
    comparisons, quiet = [], True
    for side in sorted({name for r in rounds for name in r.us} - {"eager", *faults}):
        kept, undisturbed = quiet_rounds([r for r in rounds if side in r.us], ("eager", side))
        quiet = quiet and undisturbed
        comparisons.append(paired(int(side), [r.us["eager"] for r in kept], [r.us[side] for r in kept]))
    comparisons.sort(key=lambda c: c.candidate.median_us)
    return Measured(tuple(comparisons), {int(c): Refused(0, why) for c, why in faults.items()}, quiet)
