"""Kernels that others published: right ones are found right, wrong ones are stopped. Speed is no test's business.

``scripts/judge_published.py`` times them and prints the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import torch_forge
from tests.gpu.published.catalogue import PUBLISHED
from torch_forge.search.workshop import Workshop
from torch_forge.settings import Settings

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    cache: Path = tmp_path_factory.mktemp("cache")
    with Workshop.open("cuda", Settings.resolve({}, cache_dir=cache)) as opened:
        yield opened


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nvcc] if k.kind == "cu" else []) for name, k in PUBLISHED.items()]
)
def test_a_published_kernel_has_its_verdict(shop: Workshop, name: str):
    kernel = PUBLISHED[name]
    sample = kernel.sample("cuda")
    judged = torch_forge.judge(kernel.reference, kernel.source, sample, shop=shop, any_size=kernel.any_size, timing=False)
    if kernel.rejected_by:
        assert judged.gate in kernel.rejected_by, str(judged)
    else:
        assert judged.accepted, str(judged)
    assert "source" in judged.gates.met
