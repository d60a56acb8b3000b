"""Eager against itself, on the clocks of this machine, is never a speed-up.

200 runs on made-up clocks are in tests/unit/test_timing_protocol.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.kernels import f32, problem
from torch_forge.benchmarking.confirm import confirm
from torch_forge.benchmarking.sides import Contender
from torch_forge.machine.device import device_info
from torch_forge.machine.workers import WorkerPool
from torch_forge.settings import Settings

ROOT = str(Path(__file__).resolve().parents[2])
SETTINGS = Settings(cache_dir=Path("unused"), trial_timeout_s=60.0)
PROBLEM = problem(lambda x: torch.relu(x) * 2 + x, f32(64, 256))
EAGER = Contender("tests.support.timing_sides:eager", {})
RUNS, AT_ONCE = 20, 5


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(python_path=[ROOT], preload=["torch_forge.benchmarking.session_tasks"]) as running:
        running.start()
        yield running


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", range(0, RUNS, AT_ONCE))
def test_it_is_never_a_speed_up(pool: WorkerPool, first: int):
    device = device_info("cpu", SETTINGS, measure=False)
    for seed in range(first, first + AT_ONCE):
        found = confirm(PROBLEM, EAGER, device=device, pool=pool, settings=SETTINGS, seed=seed, check=None, budget_s=0.0)
        assert not found.confirmed, found.comparison
