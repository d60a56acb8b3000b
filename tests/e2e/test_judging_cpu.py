"""Somebody's kernel, judged: accepted with a speed, or rejected with the evidence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import torch_forge
from torch_forge.errors import UsageError
from torch_forge.records.outcomes import Mismatch
from torch_forge.search.workshop import Workshop
from torch_forge.settings import Settings

pytestmark = pytest.mark.compiler

KERNEL = """
#include "forge.h"
extern "C" int forge_launch(const ForgeTensor* in, const ForgeTensor* out, const int64_t* dims, int64_t config,
                            int64_t threads, void* workspace, void* stream) {
  const float* x = (const float*)in[0].data;
  float* y = (float*)out[0].data;
  const int64_t n = dims[0] * dims[1];
  for (int64_t i = 0; i < n; ++i) y[i] = EXPRESSION;
  return FORGE_OK;
}
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    with Workshop.open("cpu", Settings.resolve({}, cache_dir=tmp_path_factory.mktemp("cache"))) as opened:
        yield opened


def leaky(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x, x * 0.125)


def test_a_right_kernel_is_accepted_and_timed(shop: Workshop, tmp_path: Path) -> None:
    path = tmp_path / "kernel.cpp"
    path.write_text(KERNEL.replace("EXPRESSION", "x[i] > 0 ? x[i] : x[i] * 0.125f"))
    judged = torch_forge.judge(leaky, path, (torch.randn(64, 256),), shop=shop)
    assert judged.accepted or judged.gate in ("faster", "confirmed"), str(judged)  # a busy machine may call it noise
    assert judged.confirmation is not None
    assert judged.comparison is not None
    assert judged.comparison.candidate.median_us > 0
    assert torch_forge.judge(leaky, path, (torch.randn(64, 256),), shop=shop, timing=False).accepted


def test_a_wrong_kernel_is_rejected_with_the_first_bad_element(shop: Workshop) -> None:
    judged = torch_forge.judge(
        leaky, KERNEL.replace("EXPRESSION", "x[i] > 0 ? x[i] : 0.0f"), (torch.randn(64, 256),), shop=shop
    )
    assert not judged.accepted
    assert isinstance(judged.trial.verdict, Mismatch)
    assert judged.trial.verdict.got == 0.0
    assert judged.trial.verdict.expected < 0
    assert str(judged).startswith("rejected")


def test_a_kernel_that_does_not_compile_shows_the_compilers_words(shop: Workshop) -> None:
    judged = torch_forge.judge(leaky, KERNEL.replace("EXPRESSION", "undeclared[i]"), (torch.randn(64, 256),), shop=shop)
    assert not judged.accepted
    assert "undeclared" in str(judged)


def test_a_missing_file_is_a_usage_error(shop: Workshop) -> None:
    with pytest.raises(UsageError, match="no file"):
        torch_forge.judge(leaky, "nowhere.cpp", (torch.randn(4, 4),), shop=shop)
