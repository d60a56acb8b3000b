"""AtenOverride on aten::gelu and friends, on the CPU: known calls only, and eager to the bit after revert."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from torch_forge.dispatch.overrides import AtenOverride
from torch_forge.errors import UsageError

MARK = 1000.0


@pytest.fixture
def x() -> Tensor:
    return torch.randn(8, 4)


@pytest.fixture
def override(x: Tensor) -> Iterator[AtenOverride]:
    over = AtenOverride("aten::gelu", "CPU")
    over.add((x,), {}, lambda t: torch.relu(t) + MARK)
    yield over
    over.revert()


def test_known_calls_only_and_a_clean_revert(override: AtenOverride, x: Tensor) -> None:
    others = [x.t(), x.double(), x[:3], x.bfloat16()]
    before = [F.gelu(x), F.gelu(x, approximate="tanh"), *map(F.gelu, others)]
    with override:
        assert torch.equal(F.gelu(x), torch.relu(x) + MARK)
        assert all(map(torch.equal, before[1:], [F.gelu(x, approximate="tanh"), *map(F.gelu, others)]))
    after = [F.gelu(x), F.gelu(x, approximate="tanh"), *map(F.gelu, others)]
    assert all(map(torch.equal, before, after))


def test_scalar_arguments_are_part_of_the_key(x: Tensor) -> None:
    over = AtenOverride("aten::gelu", "CPU")
    over.add((x,), {"approximate": "tanh"}, lambda t: t * 0)
    plain = F.gelu(x)
    with over:
        assert torch.equal(F.gelu(x), plain)
        assert torch.equal(F.gelu(x, approximate="tanh"), x * 0)


def test_gradients_are_untouched(override: AtenOverride, x: Tensor) -> None:
    leaf = x.requires_grad_()
    (expected,) = torch.autograd.grad(F.gelu(leaf).sum(), leaf)
    with override:
        out = F.gelu(leaf)
        assert out.max() > MARK / 2
        assert torch.equal(torch.autograd.grad(out.sum(), leaf)[0], expected)


def test_several_coexist_and_revert_in_any_order(override: AtenOverride, x: Tensor) -> None:
    second = AtenOverride("aten::silu", "CPU")
    second.add((x,), {}, lambda a: a * 0 + MARK)
    gelu, silu = F.gelu(x), F.silu(x)
    override.install()
    second.install()
    assert F.gelu(x).max() > MARK / 2
    assert F.silu(x).min() == MARK
    override.revert()
    assert torch.equal(F.gelu(x), gelu)
    assert F.silu(x).min() == MARK
    second.revert()
    assert torch.equal(F.silu(x), silu)


def test_installing_twice_is_refused_and_reverting_twice_is_harmless(override: AtenOverride) -> None:
    override.install()
    with pytest.raises(UsageError, match="already overridden"):
        override.install()
    override.revert()
    override.revert()
    override.install()


def test_install_is_silent(override: AtenOverride) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        override.install()


@pytest.mark.parametrize(
    ("op", "key"),
    [
        ("aten::gelu", "XPU"),
        ("aten::no_such_op", "CPU"),
        ("aten::gelu.no_such_overload", "CPU"),
        ("aten::add.Tensor", "CPU"),
        ("aten::where.self", "CPU"),
    ],
    ids=["device", "op", "overload", "takes-numbers", "takes-numbers-unlike-names"],
)
def test_what_cannot_be_overridden(op: str, key: str) -> None:
    with pytest.raises(UsageError):
        AtenOverride(op, key)


def test_a_kernel_that_fails_is_dropped(x: Tensor, caplog: pytest.LogCaptureFixture) -> None:
    def fail(t: Tensor) -> Tensor:
        raise RuntimeError("the kernel refused")

    over = AtenOverride("aten::gelu", "CPU")
    over.add((x,), {}, fail)
    expected = F.gelu(x)
    with over:
        assert torch.equal(F.gelu(x), expected)
        assert torch.equal(F.gelu(x), expected)
    assert len(caplog.records) == 1


def test_vmap_and_fake_tensors_still_work(override: AtenOverride, x: Tensor) -> None:
    from torch._subclasses import FakeTensorMode

    batch = torch.randn(3, 8, 4)
    expected = F.gelu(batch)
    with override:
        assert torch.equal(torch.vmap(F.gelu)(batch), expected)
        with FakeTensorMode() as mode:
            assert F.gelu(mode.from_tensor(x)).shape == x.shape
