"""The other contestants: eager and ``torch.compile`` on the same workload, measured without any candidate code."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch_forge.benchmarking.pairs import bench_payload
from torch_forge.benchmarking.stats import Round, quiet_rounds, speedup, timing
from torch_forge.errors import WorkerError
from torch_forge.machine.workers import TaskDied, TaskDone, WorkerPool
from torch_forge.records.codec import from_plain, to_plain
from torch_forge.records.device import DeviceInfo
from torch_forge.records.outcomes import PeerTimings
from torch_forge.records.problem import Problem

TASK = "torch_forge.benchmarking.tasks:time_peers"
ROUNDS = 60


def peers(
    problem: Problem,
    *,
    device: DeviceInfo,
    pool: WorkerPool,
    seed: int,
    budget_s: float = 1.5,
    compile_timeout_s: float = 60.0,
    inductor: bool = True,
    compiler_cache: Path | None = None,
) -> PeerTimings:
    """Eager and Inductor in one trusted worker, in turns.

    budget_s: seconds of timing. compile_timeout_s: more than this for set-up and compilation, and Inductor is left out.
    compiler_cache: where Inductor may keep what every workload shares (its headers, its tests of the compiler).
    Raises WorkerError if eager itself cannot be timed.
    """
    payload = {"problem": to_plain(problem), "inductor": inductor}
    payload.update(bench_payload(device, seed=seed, budget_s=budget_s, rounds=ROUNDS))
    scratch = pool.folder("peers")
    kept = compiler_cache or scratch
    try:
        env = {"TORCHINDUCTOR_CACHE_DIR": str(kept / "inductor"), "TRITON_CACHE_DIR": str(kept / "triton")}
        outcome = pool.run(TASK, payload, timeout_s=compile_timeout_s + 4 * budget_s, env=env, scratch=scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if isinstance(outcome, TaskDone):
        return _timings(outcome.value)
    if not inductor:
        raise WorkerError(f"eager could not be timed: {outcome}")
    why = outcome.exception if isinstance(outcome, TaskDied) else f"no answer in {outcome.limit_s:.0f} s"
    alone = peers(problem, device=device, pool=pool, seed=seed, budget_s=budget_s, inductor=False)
    return PeerTimings(alone.eager_us, None, None, f"torch.compile: {why}")


def _timings(value: Mapping[str, Any]) -> PeerTimings:
    rounds: tuple[Round, ...] = from_plain(tuple[Round, ...], value["rounds"])
    contestants = ("eager", "inductor") if rounds and all("inductor" in r.us for r in rounds) else ("eager",)
    rounds = tuple(quiet_rounds(rounds, contestants)[0])
    eager_us = [r.us["eager"] for r in rounds]
    eager = timing(eager_us).median_us
    fault = from_plain(dict[str, str], value["faults"]).get("inductor", "")
    inductor_us = [r.us["inductor"] for r in rounds if "inductor" in r.us]
    if fault or len(inductor_us) < len(eager_us):
        return PeerTimings(eager, None, None, f"torch.compile: {fault}" if fault else "")
    ratio, _, _ = speedup(inductor_us, eager_us)
    return PeerTimings(eager, timing(inductor_us).median_us, ratio, "")
