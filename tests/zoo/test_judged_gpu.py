"""The CUDA tricks on a GPU: every gate on, a trick is caught by one of its gates; an honest kernel is accepted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import torch_forge
from tests.zoo.catalogue import CONTROLS, TRICKS, let_loose, params, source_in
from tests.zoo.trick import Trick
from torch_forge.judging import Judgement
from torch_forge.search.workshop import Workshop
from torch_forge.settings import Settings

pytestmark = pytest.mark.gpu
STATIC = ("source", "binary")
"""Tripwires that tricks could be reworded to get past: what is behind them has to hold as well."""


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    with Workshop.open("cuda", Settings.resolve({}, cache_dir=tmp_path_factory.mktemp("cache"))) as opened:
        yield opened


def judged(trick: Trick, shop: Workshop, folder: Path, without: tuple[str, ...]) -> tuple[Judgement, bool]:
    """The judgement and whether the trick got what it wanted."""
    if "two gpus" in trick.needs and torch.cuda.device_count() < 2:
        pytest.xfail("needs two GPUs")
    with let_loose(trick, folder) as harmed:
        judgement = torch_forge.judge(
            trick.reference,
            source_in(trick, folder),
            tuple(t.cuda() for t in trick.sample()),
            shop=shop,
            without=without,
            any_size=trick.any_size,
            timing=trick.timing,
        )
        return judgement, judgement.accepted and harmed()


@pytest.mark.parametrize("trick", params(TRICKS, "cu"))
def test_a_trick_is_caught_behind_the_static_gates_too(trick: Trick, shop: Workshop, tmp_path: Path):
    behind = tuple(g for g in trick.gates if g not in STATIC)
    judgement, slipped = judged(trick, shop, tmp_path, STATIC if behind else ())
    assert not slipped, str(judgement)
    assert judgement.gate in (behind or trick.gates), str(judgement)


@pytest.mark.parametrize("trick", params({k: t for k, t in CONTROLS.items() if not t.gates}, "cu"))
def test_an_honest_kernel_is_accepted(trick: Trick, shop: Workshop, tmp_path: Path):
    judgement, _ = judged(trick, shop, tmp_path, ())
    assert judgement.accepted, str(judgement)
