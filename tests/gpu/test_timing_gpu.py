"""The timing protocol on a GPU: streams, events and the L2 are what a CPU cannot show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.kernels import f32, problem
from torch_forge.benchmarking.confirm import confirm
from torch_forge.benchmarking.sides import Contender
from torch_forge.machine.device import device_info
from torch_forge.machine.l2 import reset_persisting_l2
from torch_forge.machine.locks import device_lane
from torch_forge.machine.workers import WorkerPool
from torch_forge.records.timing import Confirmation
from torch_forge.settings import Settings

pytestmark = pytest.mark.gpu
ROOT = str(Path(__file__).resolve().parents[2])
SETTINGS = Settings(cache_dir=Path("unused"))
PROBLEM = problem(lambda x: torch.tanh(torch.relu(x) * 2 + x), f32(4096, 1024))


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(python_path=[ROOT], preload=["torch_forge.benchmarking.session_tasks"]) as running:
        yield running


def right(inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> str | None:
    assert inputs[0].device.type == results[0].device.type == "cuda"
    wanted = torch.tanh(torch.relu(inputs[0]) * 2 + inputs[0])
    return None if torch.allclose(results[0], wanted, atol=1e-6) else f"off by {float((results[0] - wanted).abs().max()):g}"


def judged(pool: WorkerPool, name: str, payload: dict[str, Any] | None = None, **more: Any) -> Confirmation:
    device = device_info("cuda", SETTINGS)
    options = {"seed": 3, "check": right, "settings": SETTINGS, **more}
    with device_lane(device):
        return confirm(
            PROBLEM, Contender(f"tests.support.timing_sides:{name}", payload or {}), device=device, pool=pool, **options
        )


def test_eager_against_eager_is_right_honest_and_no_faster(pool: WorkerPool):
    found = judged(pool, "eager")
    assert found.gate in {"faster", "confirmed"}, found.failure
    session = found.sessions[0]
    assert session.checked_outputs >= 2
    assert [c.clock for c in session.clocks] == ["judge", "wall", "judge, until results were fixed"]
    assert all(c.agrees for c in session.clocks)
    assert found.device.before is not None or found.device.missing


def test_work_on_another_stream_is_seen(pool: WorkerPool):
    found = judged(pool, "elsewhere", {"repeats": 200}, off=frozenset({"faster"}))
    assert found.gate in {"clocks agree", "timed outputs"}, found.failure


@pytest.mark.parametrize("name", ["tires", "precomputes"])
def test_results_that_do_not_count(pool: WorkerPool, name: str):
    found = judged(pool, name, {"calls": 3}, off=frozenset({"clocks agree", "fair baseline", "faster"}))
    assert found.gate == "timed outputs", found.failure


def test_persisting_lines_can_be_reset():
    torch.zeros(1, device="cuda")
    assert reset_persisting_l2() is True
