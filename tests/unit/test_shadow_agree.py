"""What the run-time comparison notices, and what it forgives."""

from __future__ import annotations

import pytest
import torch

from torch_forge.dispatch.shadow import agree

X = torch.tensor([1.0, -2.0, float("nan"), float("inf"), 0.0])


@pytest.mark.parametrize(
    ("found", "same"),
    [
        pytest.param(X.clone(), True, id="equal"),
        pytest.param(X * (1 + 2e-7), True, id="rounding"),
        pytest.param(X * 1.01, False, id="one per cent off"),
        pytest.param(torch.tensor([1.0, -2.0, 0.0, float("inf"), 0.0]), False, id="a number for NaN"),
        pytest.param(torch.tensor([1.0, -2.0, float("nan"), float("-inf"), 0.0]), False, id="the other infinity"),
        pytest.param(X.double(), False, id="another type"),
        pytest.param(X[:4], False, id="another shape"),
    ],
)
def test_agree(found: torch.Tensor, same: bool) -> None:
    assert agree([found], [X]) is same


def test_integers_must_be_equal_and_outputs_must_all_be_there() -> None:
    a = torch.arange(4)
    assert agree([a], [a.clone()])
    assert not agree([a + 1], [a])
    assert not agree([a], [a, a])
