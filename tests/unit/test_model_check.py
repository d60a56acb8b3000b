"""The whole-model gate: what stays, what is put back, and what is said of it."""

from __future__ import annotations

import pytest

from torch_forge.model_check import _verdict


@pytest.mark.parametrize(
    ("wrong", "engaged", "speedup", "accepted", "said"),
    [
        pytest.param("", 4, (1.2, 1.1, 1.3), True, "1.20x end to end", id="faster"),
        pytest.param("", 4, (0.99, 0.97, 1.02), True, "no measurable change", id="no difference"),
        pytest.param("", 4, (0.35, 0.33, 0.36), False, "put back", id="slower"),
        pytest.param("", 4, (0.95, 0.8, 1.1), False, "put back", id="probably slower"),
        pytest.param("", 0, (1.2, 1.1, 1.3), False, "no forged kernel was called", id="not engaged"),
        pytest.param("outputs differ", 4, (1.2, 1.1, 1.3), False, "outputs differ", id="wrong"),
    ],
)
def test_verdict(wrong: str, engaged: int, speedup: tuple[float, float, float], accepted: bool, said: str) -> None:
    verdict, why = _verdict(wrong, engaged, *speedup)
    assert verdict is accepted
    assert said in why
