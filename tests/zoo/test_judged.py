"""Every trick is caught by its gates, by each of them alone and by no other; honest kernels are accepted."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

import torch_forge
from tests.zoo.catalogue import CONTROLS, TRICKS, let_loose, params, source_in
from tests.zoo.trick import Trick
from torch_forge.judging import Judgement
from torch_forge.records.gates import BY_NAME, GATES
from torch_forge.search.workshop import Workshop
from torch_forge.settings import Settings

pytestmark = pytest.mark.compiler
LEFT_OUT = frozenset({"sanitizers", "fair baseline", "faster", "confirmed"})
"""Gates that a trick which does not name them is spared: sanitizers take as long as everything else together, and whether
something is faster depends on who else uses the machine. Controls meet them all.
"""
WITHOUT_TRICK = {
    "fair baseline": "slowing eager alone, and no other process, takes cores that are idle",
    "possible": "whoever lies about the time that much is stopped by the judge's own clock before",
    "confirmed": "it catches luck, and what takes luck is no trick",
}
"""Gates that no trick names, and why; tests/unit/test_timing_protocol.py shows them on made-up clocks."""

CAUGHT, SLIPS = "is caught", "slips through"
KNOWN_GAPS = {
    ("aligned_store", CAUGHT): "outputs are never misaligned",
    ("aligned_store", "misaligned"): "outputs are never misaligned",
    ("sniffs_surroundings", "reads inside"): "without the gates of all cases there is no run to look at",
    ("zeroes_everything", "keeps inputs"): "without the gates of all cases there is no run to look at",
    **{
        ("saturating_add", test): "integers are drawn from the middle of their range"
        for test in (CAUGHT, *TRICKS["saturating_add"].gates)
    },
}
"""What the judge does not do yet, by trick and test (or gate): a test that passes must leave this table."""


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    with Workshop.open("cpu", Settings.resolve({}, cache_dir=tmp_path_factory.mktemp("cache"))) as opened:
        yield opened


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("zoo")


class Court:
    """Judges one trick with some gates left out."""

    def __init__(self, trick: Trick, shop: Workshop, folder: Path) -> None:
        self.trick, self.shop, self.folder = trick, shop, folder / trick.name
        self.folder.mkdir(exist_ok=True)

    def judge(self, without: Collection[str]) -> tuple[Judgement, bool]:
        """The judgement, and whether the trick got what it wanted: acceptance, and the harm if it does any."""
        left_out = set(without) | (LEFT_OUT - set(self.trick.gates) if self.trick in TRICKS.values() else set())
        with let_loose(self.trick, self.folder) as harmed:
            judgement = torch_forge.judge(
                self.trick.reference,
                source_in(self.trick, self.folder),
                self.trick.sample(),
                shop=self.shop,
                without=left_out,
                any_size=self.trick.any_size,
                timing=self.trick.timing,
            )
            if self.trick.harmless:
                assert not harmed(), judgement
                return judgement, judgement.accepted
            return judgement, judgement.accepted and harmed()


@pytest.fixture
def court(trick: Trick, shop: Workshop, folder: Path) -> Court:
    return Court(trick, shop, folder)


def optional(names: Collection[str]) -> set[str]:
    return {name for name in names if BY_NAME[name].optional}


def caught_by(judgement: Judgement, gates: Collection[str]) -> bool:
    """Whether one of the gates stopped it. The sandbox does so in silence: the harm is attempted and not done."""
    return judgement.gate in gates or ("sandbox" in gates and "sandbox" not in judgement.gates.off)


def less_gaps(found: list[Any], test: str) -> list[Any]:
    """The parameters, those that are known to fail marked so."""
    return [p._replace(marks=[*p.marks, *_gap(p.values[0], test)]) for p in found]


def each_gate(found: list[Any]) -> list[Any]:
    """Each trick with each of its gates."""
    return [
        pytest.param(p.values[0], gate, id=f"{p.id}-{gate}", marks=[*p.marks, *_gap(p.values[0], gate)])
        for p in found
        for gate in p.values[0].gates
        if not p.values[0].by_chance
    ]


def _gap(trick: Trick, test: str) -> list[pytest.MarkDecorator]:
    reason = KNOWN_GAPS.get((trick.name, test))
    return [] if reason is None else [pytest.mark.xfail(reason=reason, strict=True)]


HERE = params(TRICKS, "cpp", "py")
WITHOUT_THEM = [p for p in HERE if optional(p.values[0].gates) == set(p.values[0].gates) and not p.values[0].by_chance]
"""Tricks that nothing stops once their gates are off: crashing, for one, is never let pass."""


@pytest.mark.parametrize("trick", less_gaps(HERE, CAUGHT))
def test_a_trick_is_caught_by_one_of_its_gates(trick: Trick, court: Court):
    judgement, slipped = court.judge(())
    assert not slipped, str(judgement)
    assert caught_by(judgement, trick.gates), str(judgement)


@pytest.mark.parametrize(("trick", "gate"), each_gate(HERE))
def test_each_of_its_gates_is_enough(trick: Trick, gate: str, court: Court):
    judgement, slipped = court.judge(optional(trick.gates) - {gate})
    if gate in judgement.gates.missing:
        pytest.skip(f"{gate}: {judgement.gates.missing[gate]}")
    assert not slipped, str(judgement)
    assert caught_by(judgement, (gate,)), str(judgement)


@pytest.mark.parametrize("trick", less_gaps(WITHOUT_THEM, SLIPS))
def test_without_its_gates_a_trick_slips_through(trick: Trick, court: Court):
    judgement, slipped = court.judge(trick.gates)
    assert slipped, str(judgement)


@pytest.mark.parametrize("trick", params({k: t for k, t in CONTROLS.items() if not t.gates}, "cpp", "py"))
def test_an_honest_kernel_is_accepted(trick: Trick, court: Court):
    judgement, _ = court.judge(())
    assert judgement.accepted, str(judgement)


@pytest.mark.parametrize("trick", params({k: t for k, t in CONTROLS.items() if t.gates}, "cpp", "py"))
def test_a_slow_honest_kernel_fails_by_its_speed_alone(trick: Trick, court: Court):
    judgement, _ = court.judge(())
    assert judgement.gate == "faster", str(judgement)
    judgement, _ = court.judge(("faster",))
    assert judgement.accepted, str(judgement)


def test_every_gate_has_a_trick():
    named = {gate for trick in TRICKS.values() for gate in trick.gates if not trick.by_chance}
    assert named - set(BY_NAME) == set()
    assert {g.name for g in GATES if g.optional} - named == set(WITHOUT_TRICK)


def test_there_are_enough_tricks():
    assert len([t for t in TRICKS.values() if t.kind != "cu"]) >= 60
    assert len([t for t in TRICKS.values() if t.kind == "cu"]) >= 15
