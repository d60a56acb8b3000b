"""The timing protocol against workers with made-up clocks: each way to look fast without being fast has its gate."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.kernels import f32, problem
from tests.support.timing_worlds import World
from torch_forge.benchmarking.confirm import confirm
from torch_forge.benchmarking.sides import Contender
from torch_forge.errors import WorkerError
from torch_forge.records.codec import dumps, loads
from torch_forge.records.device import DeviceInfo
from torch_forge.records.outcomes import Refused
from torch_forge.records.timing import Confirmation
from torch_forge.settings import Settings

PROBLEM = problem(lambda x: torch.relu(x) + 1, f32(8, 24))
DEVICE = DeviceInfo("cpu", 0, "paper", "generic", 1, 1 << 34, 1 << 15, 1 << 20, 10.0, 1e11, ())
SETTINGS = Settings(cache_dir=Path("unused"))


def right(inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> str | None:
    return None if torch.equal(torch.relu(inputs[0]) + 1, results[0]) else "it is not relu(x) + 1"


def judged(world: World, **more: Any) -> Confirmation:
    options = {"seed": 1, "secret": world.seed, "check": right if world.results else None, **more}
    return confirm(PROBLEM, Contender("no:side", {}), device=DEVICE, pool=world, settings=SETTINGS, **options)  # type: ignore[arg-type]


def test_an_honest_kernel_is_confirmed_with_all_figures():
    found = judged(World(results=True), bound_us=20.0)
    assert found.confirmed
    assert found.gate is None
    assert found.met == ("timed outputs", "clocks agree", "fair baseline", "possible", "faster", "confirmed")
    assert (found.missing, found.notes) == ({}, ())
    assert [s.seed for s in found.sessions] == [1, 7920]
    assert found.comparison is not None
    assert found.comparison.ratio_low == min(s.comparison.ratio_low for s in found.sessions)
    for session in found.sessions:
        assert session.comparison.ratio == pytest.approx(2.0, rel=0.05)
        assert session.required_ratio >= 1.03
        assert session.noise.low <= 1 <= session.noise.high
        assert {c.clock for c in session.clocks} == {"judge", "judge, until results were fixed"}
        assert session.checked_outputs == 4
    assert loads(Confirmation, dumps(found)) == found


def world_of(eager_us: float = 100.0, candidate_us: float | tuple[float, ...] = 50.0, **more: Any) -> partial[World]:
    """Worlds count what happens in them, so each test makes its own."""
    return partial(World, eager_us, candidate_us, **more)


TRICKS: dict[str, tuple[str, partial[World], dict[str, Any]]] = {
    "a tenth of its time": ("clocks agree", world_of(tell=lambda side, us, n: us if side == "eager" else us / 10), {}),
    "20 us less": ("clocks agree", world_of(100, 99, tell=lambda side, us, n: us - (side != "eager") * 20 * n), {}),
    "a constant": ("clocks agree", world_of(100, 99, tell=lambda side, us, n: us if side == "eager" else 1.0), {}),
    "less by the request": ("clocks agree", world_of(100, 99, tell=lambda side, us, n: us - (side != "eager") * 600), {}),
    "more for eager": ("clocks agree", world_of(100, 99, tell=lambda side, us, n: 3 * us if side == "eager" else us), {}),
    "not a number": ("clocks agree", world_of(tell=lambda side, us, n: float("nan")), {}),
    "no number": ("clocks agree", world_of(answers={"go": {"spent_us": "5", "wall_us": 5.0, "samples": []}}), {}),
    "work left for later": ("clocks agree", world_of(100, 10, late_us=90.0, results=True), {}),
    "eager slowed down": ("fair baseline", world_of(200, 100, clean_us=100), {}),
    "faster than memory": ("possible", world_of(), {"bound_us": 120.0}),
    "not faster": ("faster", world_of(100, 99), {}),
    "slower": ("faster", world_of(100, 300), {}),
    "hopelessly slow": ("faster", world_of(100, 3000), {}),
    "lucky once": ("confirmed", world_of(100, (50, 100)), {}),
    "stale inputs": ("timed outputs", world_of(results=True, compute=lambda eager, x, old: eager(*old)), {}),
    "wrong": ("timed outputs", world_of(results=True, compute=lambda eager, x, old: (eager(*x)[0] * 1.1,)), {}),
    "changed afterwards": ("timed outputs", world_of(results=True, after=lambda results: results[0].add_(1)), {}),
    "not there yet": ("timed outputs", world_of(results=True, shown=lambda sample: "00" * (len(sample) // 2)), {}),
    "no digests": ("timed outputs", world_of(results=True, answers={"commit": {"digests": []}}), {}),
    "digests of nothing": ("timed outputs", world_of(results=True, answers={"commit": {}}), {}),
    "no answer": ("survives", world_of(answers={"go": 7}), {}),
    "a call that fails": ("launches", world_of(answers={"go": {"fault": "return code 3"}}), {}),
    "a lazy result": ("result form", world_of(answers={"go": {"fault": "a proxy", "gate": "result form"}}), {}),
    "a gate of its own choice": ("launches", world_of(answers={"go": {"fault": "?", "gate": "faster"}}), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", TRICKS)
def test_each_trick_fails_its_gate(name: str):
    gate, world, more = TRICKS[name]
    found = judged(world(), **more)
    assert found.gate == gate, found.failure
    assert not found.confirmed
    assert found.met[-1] == gate


OPEN = {
    "clocks agree": ("a tenth of its time", "a constant", "work left for later"),
    "fair baseline": ("eager slowed down",),
    "possible": ("faster than memory",),
    "confirmed": ("lucky once",),
    "faster": ("not faster", "slower", "hopelessly slow"),
    "timed outputs": ("stale inputs", "wrong", "changed afterwards", "not there yet", "no digests"),
}


@pytest.mark.parametrize(("gate", "name"), [(g, n) for g, names in OPEN.items() for n in names])
def test_without_its_gate_a_trick_slips_through(gate: str, name: str):
    _, world, more = TRICKS[name]
    found = judged(world(), off=frozenset({gate}), **more)
    assert found.confirmed, found.failure
    assert gate not in found.met


def test_eager_against_eager_is_never_a_speed_up():
    for seed in range(200):
        world = World(100, 100, noise=(0.01, 0.05, 0.2)[seed % 3], seed=seed)
        assert judged(world, budget_s=0.0).gate in {"faster", "confirmed"}


@pytest.mark.parametrize(("gain", "least", "most"), [(0.01, 0, 0), (0.02, 0, 0), (0.10, 9, 10), (0.25, 10, 10)])
def test_a_gain_is_found_the_more_surely_the_larger_it_is(gain: float, least: int, most: int):
    found = sum(judged(World(100, 100 * (1 - gain), noise=0.04, seed=seed)).confirmed for seed in range(10))
    assert least <= found <= most


def test_an_added_delay_is_found():
    """The same kernel with 0, 10 and 30 % of delay: what is slower never has the better figure."""
    ratios = [judged(World(100, 60 * (1 + delay), seed=3)).comparison.ratio for delay in (0.0, 0.1, 0.3)]  # type: ignore[union-attr]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] / ratios[2] == pytest.approx(1.3, rel=0.05)


def test_noise_raises_the_demand():
    calm, noisy = judged(World(noise=0.01)), judged(World(noise=0.4))
    assert calm.sessions[0].required_ratio == 1.03
    assert noisy.sessions[0].required_ratio > 1.05


def test_what_is_slower_beside_it_is_compared_with_eager_alone():
    found = judged(World(106, 98, clean_us=100, noise=0.01))
    assert found.gate == "faster"
    assert found.sessions[0].comparison.eager.median_us == pytest.approx(100, rel=0.02)
    assert any("slower beside" in note for note in found.notes)


def test_close_to_the_bound_is_a_remark_and_no_verdict():
    found = judged(World(), bound_us=60.0)
    assert found.confirmed
    assert any("faster than the bound" in note for note in found.notes)


def test_the_plan_does_not_depend_on_the_candidate():
    quick, slow = judged(World(candidate_us=1.0)), judged(World(candidate_us=95.0))
    assert (quick.calls, quick.planned_rounds) == (slow.calls, slow.planned_rounds)
    assert {s.rounds for s in (*quick.sessions, *slow.sessions)} == {quick.planned_rounds}


def test_no_contents_come_twice_and_the_order_is_random():
    world = World()
    found = judged(world)
    sides = [(side, clean) for side, clean, *_ in world.log]
    nonces = [nonce for _, _, nonce, *_ in world.log]
    assert len(set(nonces)) == len(nonces)
    for side in (("candidate", False), ("eager", True)):
        assert {k % 4 for k, s in enumerate(sides) if s == side} == {0, 1, 2, 3}
    lengths = [calls for side, _, _, calls, _ in world.log if side == "candidate" and calls > 1]
    assert sorted(set(lengths)) == [found.calls, 2 * found.calls]
    assert lengths.count(found.calls) == lengths.count(2 * found.calls)
    assert all(calls - 1 in touched and len(touched) == min(4, calls) for *_, calls, touched in world.log)


def test_the_same_secret_repeats_contents_and_order():
    one, two, other = World(seed=5), World(seed=5), World(seed=6)
    assert judged(one).secret == judged(two).secret
    judged(other)
    assert one.log == two.log
    assert one.log != other.log


def test_a_fault_of_eager_alone_is_no_verdict():
    class Broken(World):
        def session(self, *args: Any, **more: Any) -> Any:
            opened = super().session(*args, **more)
            opened.probe = lambda: ({"fault": "out of memory"}, 0.0)  # type: ignore[method-assign]
            return opened

    with pytest.raises(WorkerError, match="eager could not be timed"):
        judged(Broken())


def test_what_is_not_available_is_said():
    found = judged(World())
    assert found.confirmed
    assert set(found.missing) == {"timed outputs", "possible"}
    assert found.met == ("clocks agree", "fair baseline", "faster", "confirmed")
    assert found.device.missing == "no GPU"
    assert isinstance(judged(World(100, 100)).failure, Refused)
