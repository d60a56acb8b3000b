"""One run of a model as a ``Profile``: which operations, at which shapes, in which modules, and how long each takes.

Wall time comes from runs without a profiler, times of operations from runs with one, identities from a run under an
observer; each run starts from the same state (``state``), so the three tell of the same run. A device time that is
missing is measured again and then said so; it never becomes a fast operation.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

from torch_forge.errors import UsageError
from torch_forge.profiling.observe import Seen, observed, timed
from torch_forge.profiling.state import State, preserved
from torch_forge.profiling.trace import Run, reason_against_tracing, traced
from torch_forge.profiling.workload import Call, Workload
from torch_forge.records.device import DeviceInfo
from torch_forge.records.profile import OpCost, Profile

logger = logging.getLogger(__name__)

Note = Callable[[str], None]
ATTEMPTS = 3
"""Profiler sessions until device times are complete."""


def profile(
    model: Callable[..., Any], call: Call, device: DeviceInfo, *, warmup: int = 2, runs: int = 3, note: Note = logger.warning
) -> Profile:
    """Profile ``model`` on ``call``, in the grad mode of the caller; everything of the user's is as before afterwards.

    note: told, in one line each, of the workload's notes and of anything that makes the figures less exact.
    Raises UsageError if the model is not on ``device``; an exception of the model itself passes through.
    """
    workload = Workload(model, call)
    where = workload.device
    if where.type != device.type or (where.index or 0) != device.index:
        wanted = f"{device.type}:{device.index}" if device.type == "cuda" else device.type
        raise UsageError(f"the model is on {where}, not on {wanted}", advice=f"Move it first: model.to('{wanted}').")
    for each in workload.notes:
        note(each)
    with preserved(model, call.args, call.kwargs) as state:
        runner = _Runner(workload, state)
        for _ in range(max(warmup, 1)):
            runner.prepare()()
        wall_us = median(_wall_us(runner.prepare()) for _ in range(runs))
        measured = _measure(runner, runs, note)
    costs = _merge(measured)
    if where.type == "cpu":
        # Operations on the CPU follow one another: what they add up to above the wall time is the profiler's own work.
        scale = min(1.0, wall_us / max(sum(c.self_us for c in costs), 1e-9))
        costs = [OpCost(c.op, c.shapes, c.calls, c.self_us * scale, c.module) for c in costs]
    costs.sort(key=lambda c: (-c.self_us, c.op, c.shapes, c.module))
    return Profile(device=device.key, total_us=sum(c.self_us for c in costs), wall_us=wall_us, ops=tuple(costs))


class _Runner:
    """Runs the workload from the same state every time and keeps nothing of the result."""

    def __init__(self, workload: Workload, state: State) -> None:
        self._workload = workload
        self._state = state
        self.device = workload.device
        self.compiled = workload.compiled
        self._gpus = [d for d in workload.devices if d.type == "cuda"]

    def prepare(self) -> Callable[[], None]:
        """Go back to the start; what is returned runs the model once and waits for the device."""
        self._state.rewind()
        call = self._workload.call.isolated()
        self._synchronize()

        def run() -> None:
            self._workload.target(*call.args, **call.kwargs)
            self._synchronize()

        return run

    def _synchronize(self) -> None:
        for gpu in self._gpus:
            torch.cuda.synchronize(gpu)


def _wall_us(run: Callable[[], None]) -> float:
    begin = time.perf_counter_ns()
    run()
    return (time.perf_counter_ns() - begin) / 1e3


def _measure(runner: _Runner, runs: int, note: Note) -> list[Run]:
    seen = _observe(runner, note) if not runner.compiled else []
    reason = reason_against_tracing(runner.device)
    if not reason:
        for _ in range(ATTEMPTS):
            measured = traced(runner.prepare, runs, runner.device, seen)
            lost = lost_times(measured)
            if not lost:
                return measured
        if any(us > 0 for run in measured for _, us in run):
            note(f"device times of {lost} are incomplete after {ATTEMPTS} attempts; the largest seen is used")
            return measured
        reason = "torch's profiler saw no device time"
    note(f"operations were timed one by one, which overstates small ones: {reason}")
    return [timed(runner.prepare(), runner.device) for _ in range(runs)]


def _observe(runner: _Runner, note: Note) -> list[Seen]:
    try:
        return observed(runner.prepare())
    except (NotImplementedError, TypeError, RuntimeError) as error:  # what operations without a rule for modes raise
        note(f"operations could not be assigned to modules: {error}")
        return []


def lost_times(runs: Sequence[Run]) -> str:
    """An operation whose time is zero in some runs and not in others; ``everything`` if all are zero; empty if complete."""
    totals = [_totals(run) for run in runs]
    if not any(us > 0 for total in totals for us, _ in total.values()):
        return "everything" if any(totals) else ""
    for key in {key for total in totals for key in total}:
        times = [total[key][0] if key in total else 0.0 for total in totals]
        if min(times) == 0 < max(times):
            return key.op
    return ""


def _totals(run: Run) -> dict[Seen, tuple[float, int]]:
    """(microseconds, calls) by operation, shapes and module."""
    totals: dict[Seen, tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    for key, us in run:
        so_far, calls = totals[key]
        totals[key] = (so_far + us, calls + 1)
    return totals


def _merge(runs: Sequence[Run]) -> list[OpCost]:
    """Median over runs; where a run lost a time, the largest one: a missing time is not a fast one."""
    totals = [_totals(run) for run in runs]
    costs = []
    for key in dict.fromkeys(key for total in totals for key in total):
        times = [total[key][0] for total in totals if key in total]
        us = median(times) if min(times) > 0 else max(times)
        calls = max(total[key][1] for total in totals if key in total)
        if us > 0:
            costs.append(OpCost(key.op, key.shapes, calls, us, key.module))
    return costs
