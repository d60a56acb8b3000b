"""The whole model before and after, in the user's process: pairs of runs, in an order that flips from pair to pair."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from torch_forge.benchmarking.stats import median_interval, speedup

MIN_PAIRS = 5
MAX_PAIRS = 200


class ModelTiming(NamedTuple):
    """Medians, and the speedup over pairs with its 95 % interval."""

    eager_ms: float
    forge_ms: float
    speedup: float
    low: float
    high: float
    pairs: int


def time_models(
    eager_call: Callable[[], object], forged_call: Callable[[], object], *, budget_s: float, device: str
) -> ModelTiming:
    """Run both in turns for about ``budget_s`` seconds, at least 5 pairs after one warm-up pair.

    The calls run the model as the user does; gradients, autocast and streams are theirs. device: ``cpu`` or ``cuda:N``.
    """
    wait = _waiter(device)
    warm_s = _run_s(eager_call, wait) + _run_s(forged_call, wait)
    pairs = max(MIN_PAIRS, min(MAX_PAIRS, int(budget_s / max(warm_s, 1e-6))))
    eager_s: list[float] = []
    forged_s: list[float] = []
    sides = [(eager_call, eager_s), (forged_call, forged_s)]
    deadline = time.perf_counter() + 2 * budget_s
    for number in range(pairs):
        for call, samples in sides if number % 2 == 0 else reversed(sides):
            samples.append(_run_s(call, wait))
        if number + 1 >= MIN_PAIRS and time.perf_counter() > deadline:
            break
    ratio, low, high = speedup([1e6 * s for s in eager_s], [1e6 * s for s in forged_s])
    eager_ms, forged_ms = (median_interval(s)[0] * 1e3 for s in (eager_s, forged_s))
    return ModelTiming(eager_ms, forged_ms, ratio, low, high, len(eager_s))


def _waiter(device: str) -> Callable[[], object]:
    if device.startswith("cuda"):
        return lambda: torch.cuda.synchronize(torch.device(device))
    return lambda: None


def _run_s(call: Callable[[], object], wait: Callable[[], object]) -> float:
    """Wall seconds of one run, everything on the device finished before and after."""
    wait()
    begin = time.perf_counter()
    result = call()
    wait()
    elapsed = time.perf_counter() - begin
    del result  # freed outside the timed region, on both sides
    return elapsed
