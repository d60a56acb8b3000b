"""Every trick passes a harness without care; so it is a trick, and no broken kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.zoo import naive
from tests.zoo.catalogue import CONTROLS, TRICKS, let_loose, module_of, params, source_in
from tests.zoo.trick import Trick


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("zoo")


def judged(trick: Trick, folder: Path) -> tuple[naive.Verdict, bool]:
    """What the naive harness says, and whether the harm was done."""
    if "two gpus" in trick.needs and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    own = folder / trick.name
    own.mkdir(exist_ok=True)
    with let_loose(trick, own) as harmed:
        product = naive.product_of(trick, source_in(trick, own), folder)
        verdict = naive.judge(trick, module_of(trick), product)
        return verdict, harmed()


@pytest.mark.parametrize("trick", params(TRICKS, "cpp", "py", "cu"))
def test_a_trick_passes_the_naive_harness(trick: Trick, folder: Path):
    verdict, harmed = judged(trick, folder)
    assert verdict.correct, verdict.printed
    assert harmed
    assert not trick.timing or verdict.speed_up > 1, verdict


@pytest.mark.parametrize("trick", params(CONTROLS, "cpp", "py", "cu"))
def test_an_honest_kernel_passes_it_too(trick: Trick, folder: Path):
    verdict, _ = judged(trick, folder)
    assert verdict.correct, verdict.printed
