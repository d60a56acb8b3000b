"""The timing protocol with real workers and real results; what depends on how fast this machine is decides nothing here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.kernels import build, f32, problem
from torch_forge.benchmarking.confirm import confirm
from torch_forge.benchmarking.sides import Contender, native
from torch_forge.machine.device import device_info
from torch_forge.machine.workers import WorkerPool
from torch_forge.records.device import DeviceInfo
from torch_forge.records.outcomes import Crashed, TimedOut
from torch_forge.records.problem import Problem
from torch_forge.records.tensors import TensorSpec
from torch_forge.records.timing import Confirmation
from torch_forge.settings import Settings

ROOT = str(Path(__file__).resolve().parents[2])
SETTINGS = Settings(cache_dir=Path("unused"), trial_timeout_s=60.0)
SPEEDS = frozenset({"clocks agree", "fair baseline", "faster"})
"""Gates whose verdict depends on the machine."""
SMALL = problem(lambda x: torch.relu(x) * 2 + x, f32(32, 40))
BODY = "for (int64_t i = 0; i < count(in[0]); ++i) { float x = IN(0)[i]; OUT(0)[i] = (x > 0 ? x : 0) * 2 + x; }"


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(python_path=[ROOT], preload=["torch_forge.benchmarking.session_tasks"]) as running:
        running.start()
        yield running


@pytest.fixture(scope="module")
def cpu() -> Iterator[DeviceInfo]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield device_info("cpu", SETTINGS, measure=False)
    torch.set_num_threads(before)


def right(inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> str | None:
    wanted = torch.relu(inputs[0]) * 2 + inputs[0]
    return None if torch.allclose(results[0], wanted) else f"off by {float((results[0] - wanted).abs().max()):g}"


def judged(contender: Contender, cpu: DeviceInfo, pool: WorkerPool, of: Problem = SMALL, **more: Any) -> Confirmation:
    options = {"seed": 3, "check": right, "off": SPEEDS, "budget_s": 0.0, "settings": SETTINGS, **more}
    return confirm(of, contender, device=cpu, pool=pool, **options)


def side(name: str, **payload: Any) -> Contender:
    return Contender(f"tests.support.timing_sides:{name}", payload)


@pytest.mark.compiler
def test_a_right_kernel_in_two_fresh_processes(cpu: DeviceInfo, pool: WorkerPool):
    found = judged(native(build(BODY, SMALL), (32, 40), 0), cpu, pool)
    assert found.confirmed, found.failure
    assert found.met == ("timed outputs", "confirmed")
    assert len(found.sessions) == 2
    for session in found.sessions:
        assert (session.rounds, session.checked_outputs) == (16, 4)
        assert session.comparison.candidate.median_us > 0
        assert session.clocks[0].clock == "judge"


LAYOUTS = {
    "transposed": TensorSpec((24, 36), (1, 24), "float32"),
    "strided": TensorSpec((24, 36), (80, 2), "float32"),
    "broadcast": TensorSpec((24, 36), (0, 1), "float32"),
    "half": TensorSpec((24, 36), (36, 1), "float16"),
    "empty": TensorSpec((0, 36), (36, 1), "float32"),
    "scalar": TensorSpec((), (), "float32"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_judge_makes_the_same_inputs(cpu: DeviceInfo, pool: WorkerPool, layout: str):
    found = judged(side("eager"), cpu, pool, problem(lambda x: torch.relu(x) * 2 + x, LAYOUTS[layout]))
    assert found.confirmed, found.failure


def test_indices_stay_valid_and_large_results_are_checked(cpu: DeviceInfo, pool: WorkerPool):
    table, index = f32(50, 64), TensorSpec((400,), (1,), "int64")
    of = problem(lambda t, i: torch.nn.functional.embedding(i, t), table, index)

    def equal(inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> str | None:
        return None if torch.equal(inputs[0][inputs[1]], results[0]) else "another row"

    found = judged(side("eager"), cpu, pool, of, check=equal)
    assert found.confirmed, found.failure


WRONG: dict[str, tuple[Contender, str, str]] = {
    "tires": (side("tires", calls=3), "timed outputs", "never seen before"),
    "precomputes": (side("precomputes"), "timed outputs", "never seen before"),
    "late": (side("late", seconds=0.05), "timed outputs", "a timed call"),
    "lazy": (side("lazy"), "result form", "Proxy"),
}


@pytest.mark.parametrize("name", WRONG)
def test_results_that_do_not_count(cpu: DeviceInfo, pool: WorkerPool, name: str):
    contender, gate, reason = WRONG[name]
    found = judged(contender, cpu, pool)
    assert found.gate == gate, found.failure
    assert re.search(reason, found.failure.reason)


@pytest.mark.parametrize("name", ["tires", "precomputes"])
def test_only_looking_shows_them(cpu: DeviceInfo, pool: WorkerPool, name: str):
    assert judged(WRONG[name][0], cpu, pool, off=SPEEDS | {"timed outputs"}).confirmed


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("body", "gate", "kind"),
    [
        ("abort();", "survives", Crashed),
        ("_exit(0);", "survives", Crashed),
        ("for (;;) usleep(1000);", "survives", TimedOut),
        ("return FORGE_UNSUPPORTED;", "launches", object),
    ],
    ids=["abort", "leaves", "hangs", "refuses"],
)
def test_ends_are_verdicts(cpu: DeviceInfo, pool: WorkerPool, body: str, gate: str, kind: type):
    patience = SETTINGS.with_(trial_timeout_s=3.0) if "usleep" in body else SETTINGS
    found = judged(native(build(body, SMALL), (32, 40), 0), cpu, pool, settings=patience)
    assert found.gate == gate
    assert isinstance(found.failure, kind)
    assert found.comparison is None


def test_a_clock_that_is_stopped_is_found_from_outside(cpu: DeviceInfo, pool: WorkerPool):
    # 20 ms of 20 ms are hidden; calls of eager take a hundredth of that, on any machine and under any load.
    of = problem(lambda x: torch.relu(x) * 2 + x, f32(512, 1024))
    assert judged(side("stops_the_clock", seconds=0.02), cpu, pool, of, off=SPEEDS - {"clocks agree"}).gate == "clocks agree"
    assert judged(side("stops_the_clock", seconds=0.02), cpu, pool, of).confirmed
