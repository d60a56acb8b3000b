"""Tuning in which the clock decides nothing: every right kernel counts as a gain, so a busy machine changes no test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torch_forge.benchmarking.model import ModelTiming


@contextmanager
def every_right_kernel_wins() -> Iterator[None]:
    """Selection, the winner's rule and the whole-model gate see a gain in every kernel that passed its checks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch_forge.selection.select.MIN_GAIN_SHARE", float("-inf"))
        patch.setattr("torch_forge.search.decide.MARGIN", 0.0)
        patch.setattr("torch_forge.search.trials._measured_again", lambda _case, _judge, best: best)
        patch.setattr("torch_forge.model_check.time_models", lambda *_, **__: ModelTiming(2.0, 1.0, 2.0, 2.0, 2.0, 5))
        yield


class OneRegion(nn.Module):
    """The cheapest model to tune: one kernel computes it."""

    SHAPE = (64, 128)

    def forward(self, x: Tensor) -> Tensor:
        return torch.rsqrt(F.gelu(x).pow(2).mean(-1, keepdim=True) + 1e-6) * x
