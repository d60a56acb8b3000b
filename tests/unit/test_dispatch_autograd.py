"""Gradients of forged calls are eager's own, of every order, and nothing of the user's state moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from torch_forge.dispatch.call import ForgedFunction

RUNS: list[str] = []


def norm(x: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(x) * w / (1 + x.square().mean(-1, keepdim=True))


def forge(fn: Callable[..., Any], *args: Any, **options: Any) -> ForgedFunction:
    """``fn`` with one known case whose kernel computes what ``fn`` does and notes that it ran."""

    def run(*tensors: Tensor) -> Any:
        assert not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))
        RUNS.append("forged")
        return fn(*tensors)

    forged = ForgedFunction(fn, name="fn")
    forged.add(args, {}, run, **options)
    RUNS.clear()
    return forged


def leaves(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [torch.randn(s, dtype=dtype).requires_grad_() for s in shapes]


def test_first_and_second_derivatives() -> None:
    x, w = leaves((3, 4), (4,))
    forged = forge(norm, x, w)
    assert torch.autograd.gradcheck(forged, (x, w))
    assert torch.autograd.gradgradcheck(forged, (x, w))
    assert "forged" in RUNS


@pytest.mark.parametrize("needs", [(True, False), (False, True), (True, True)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_are_eagers_to_the_bit(needs: tuple[bool, bool], dtype: torch.dtype) -> None:
    tensors = [t.detach().requires_grad_(n) for t, n in zip(leaves((5, 7), (7,), dtype=dtype), needs, strict=True)]
    forged = forge(norm, *tensors)
    seed = torch.randn(5, 7, dtype=dtype)
    wanted = [t for t in tensors if t.requires_grad]
    for _ in range(2):
        actual = torch.autograd.grad(forged(*tensors), wanted, seed)
        expected = torch.autograd.grad(norm(*tensors), wanted, seed)
        assert all(map(torch.equal, actual, expected))
    assert RUNS == ["forged", "forged"]


def test_third_derivative_and_a_shared_input() -> None:
    (x,) = leaves((4,))
    forged = forge(lambda a, b: a.square() * b, x, x)
    (first,) = torch.autograd.grad(forged(x, x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
    (third,) = torch.autograd.grad(second.sum(), x)
    assert torch.allclose(first, 3 * x**2)
    assert torch.allclose(second, 6 * x)
    assert torch.allclose(third, torch.full_like(x, 6.0))


@pytest.mark.parametrize("used", [0, 1, 2], ids=["first", "second", "both"])
def test_unused_and_integer_outputs(used: int) -> None:
    def several(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x.exp(), x.argmax(-1), x.sum(-1)

    (x,) = leaves((3, 4))
    forged = forge(several, x)
    values, index, sums = forged(x)
    assert (values.requires_grad, index.requires_grad, sums.requires_grad) == (True, False, True)
    pick = [lambda v, s: v.sum(), lambda v, s: s.square().sum(), lambda v, s: v.sum() + s.square().sum()][used]
    (actual,) = torch.autograd.grad(pick(values, sums), x)
    expected_values, _, expected_sums = several(x)
    (expected,) = torch.autograd.grad(pick(expected_values, expected_sums), x)
    assert torch.equal(actual, expected)


def test_an_input_the_function_ignores_gets_no_gradient() -> None:
    x, w = leaves((3,), (3,))
    forged = forge(lambda x, w: x * 2, x, w)
    assert torch.autograd.grad(forged(x, w).sum(), [x, w], allow_unused=True)[1] is None


def test_no_grad_and_inference_mode_take_no_graph() -> None:
    x, w = leaves((3, 4), (4,))
    forged = forge(norm, x, w)
    assert forged(x, w).grad_fn is not None
    for _ in range(2):
        with torch.no_grad():
            assert forged(x, w).grad_fn is None
        with torch.inference_mode():
            out = forged(x, w)
            assert out.is_inference()
            assert not out.requires_grad
    assert forged(x, w).grad_fn is not None
    assert len(RUNS) == 6


def test_inference_tensors_in_a_training_call_stay_eager() -> None:
    (x,) = leaves((3,))
    with torch.inference_mode():
        constant = torch.ones(3, dtype=torch.float64)
    forged = forge(torch.add, x, constant)
    forged(x, constant).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.ones_like(x))
    assert RUNS == []


def test_cases_may_refuse_gradients() -> None:
    x, w = leaves((3, 4), (4,))
    forged = forge(norm, x, w, differentiable=False)
    assert forged(x, w).grad_fn.name() != "_RecomputeBackward"  # type: ignore[union-attr]
    assert RUNS == []
    with torch.no_grad():
        forged(x, w)
    assert RUNS == ["forged"]


def test_backward_recomputes_under_the_forward_autocast() -> None:
    x, w = leaves((4, 4), (4, 4), dtype=torch.float32)
    dtypes: list[torch.dtype] = []

    def product(a: Tensor, b: Tensor) -> Tensor:
        out = a @ b
        dtypes.append(out.dtype)
        return out

    with torch.autocast("cpu", dtype=torch.bfloat16):
        forged = forge(product, x, w)
        out = forged(x, w)
        expected = torch.autograd.grad(product(x, w).float().sum(), [x, w])
    dtypes.clear()
    actual = torch.autograd.grad(out.float().sum(), [x, w])
    assert dtypes == [torch.bfloat16]
    assert all(map(torch.equal, actual, expected))
    plain = forge(product, x, w)
    out = plain(x, w)
    dtypes.clear()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.autograd.grad(out.sum(), [x, w])
    assert dtypes == [torch.float32]


def test_random_reference_keeps_the_users_random_stream() -> None:
    (x,) = leaves((64,))
    masks: list[Tensor] = []

    def noisy(x: Tensor) -> Tensor:
        out = F.dropout(x, 0.5)
        masks.append(out.detach() != 0)
        return out

    forged = ForgedFunction(noisy, name="noisy")
    forged.add((x,), {}, lambda x: x * 2, random=True)
    torch.manual_seed(7)
    out = forged(x)
    between = torch.get_rng_state()
    out.sum().backward()
    assert torch.equal(torch.get_rng_state(), between)
    torch.manual_seed(7)
    noisy(x)
    assert torch.equal(masks[0], masks[1])


@pytest.mark.parametrize("reentrant", [False, True], ids=["saved-tensors", "reentrant"])
def test_activation_checkpointing(reentrant: bool) -> None:
    x, w = leaves((3, 4), (4,))
    forged = forge(norm, x, w)
    expected = torch.autograd.grad(norm(x, w).sum(), [x, w])
    checkpoint(forged, x, w, use_reentrant=reentrant).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, expected[0])
    assert w.grad is not None
    assert torch.equal(w.grad, expected[1])


def test_changing_a_saved_input_in_place_is_an_error_as_in_eager() -> None:
    x, w = leaves((3, 4), (4,))
    y = x * 1
    forged = forge(norm, y, w)
    out = forged(y, w)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_new_weights_are_followed() -> None:
    x, w = leaves((3, 4), (4,))
    forged = forge(norm, x, w)
    forged(x, w)
    w.data = torch.randn(4, dtype=torch.float64)
    assert torch.equal(forged(x, w), norm(x, w))
    with torch.no_grad():
        w.fill_(3.0)
    assert torch.equal(forged(x, w), norm(x, w))
    w.requires_grad_(False)
    x.requires_grad_(False)
    assert not forged(x, w).requires_grad
