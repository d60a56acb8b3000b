"""Functions forged for real on the CPU: right, faster ones installed, remembered, undone; anything else runs as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

import torch_forge
from torch_forge.errors import UsageError
from torch_forge.search.workshop import Workshop
from torch_forge.settings import Settings

pytestmark = pytest.mark.compiler


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    """One workshop for all tests here: its worker parent is started once."""
    settings = Settings.resolve(
        {"TORCH_FORGE_TIMING": "brief"}, cache_dir=tmp_path_factory.mktemp("cache"), budget_s=60.0, peers="eager"
    )
    with Workshop.open("cpu", settings) as opened:
        yield opened


def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = x.float()
    return w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def chain(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"a": F.gelu(x + y) * 0.5, "b": (x * y).sigmoid().softmax(-1)}


def test_a_chain_is_forged_and_right(shop: Workshop) -> None:
    x, w = torch.randn(1024, 1024), torch.rand(1024)
    fast = torch_forge.forge(rms_norm, (x, w), shop=shop)
    assert fast.region.verdict == "installed", fast.region.why
    assert len(fast) == 1
    torch.testing.assert_close(fast(x, w), rms_norm(x, w))
    fresh = torch.randn_like(x)
    torch.testing.assert_close(fast(fresh, w), rms_norm(fresh, w))


def test_second_run_neither_builds_nor_measures(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = torch.randn(1024, 1024), torch.rand(1024)
    torch_forge.forge(rms_norm, (x, w), shop=shop)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a worker was used")

    monkeypatch.setattr(shop.pool, "run", refuse)
    again = torch_forge.forge(rms_norm, (x, w), shop=shop)
    assert again.region.from_cache
    assert again.region.verdict == "installed"
    torch.testing.assert_close(again(x, w), rms_norm(x, w))


def test_another_number_of_rows_is_served_without_a_compiler(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    torch_forge.forge(rms_norm, (torch.randn(1024, 1024), torch.rand(1024)), shop=shop)
    monkeypatch.setattr(shop, "toolchain", None)
    x, w = torch.randn(3, 77, 1024), torch.rand(1024)
    other = torch_forge.forge(rms_norm, (x, w), shop=shop)
    assert len(other) == 1
    torch.testing.assert_close(other(x, w), rms_norm(x, w))


def test_unknown_calls_run_the_original_bit_for_bit(shop: Workshop) -> None:
    x, w = torch.randn(1024, 1024), torch.rand(1024)
    fast = torch_forge.forge(rms_norm, (x, w), shop=shop)
    for other in (x[:5], x.t().contiguous().t(), x.double(), x[:, 1:].contiguous()):
        weight = w[: other.shape[1]].to(other.dtype)
        assert torch.equal(fast(other, weight), rms_norm(other, weight))
    assert sum(fast.seen.values()) == 4


def test_misaligned_views_are_right(shop: Workshop) -> None:
    x, w = torch.randn(1024, 1024), torch.rand(1024)
    fast = torch_forge.forge(rms_norm, (x, w), shop=shop)
    base = torch.randn(1024 * 1024 + 1)
    shifted = base[1:].view(1024, 1024)
    torch.testing.assert_close(fast(shifted, w), rms_norm(shifted, w))


def test_gradients_are_eagers(shop: Workshop) -> None:
    x, w = torch.randn(1024, 1024, requires_grad=True), torch.rand(1024, requires_grad=True)
    fast = torch_forge.forge(rms_norm, (x, w), shop=shop)
    cotangent = torch.randn(1024, 1024)
    got = torch.autograd.grad(fast(x, w), (x, w), cotangent)
    want = torch.autograd.grad(rms_norm(x, w), (x, w), cotangent)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


def test_structured_outputs_and_revert(shop: Workshop) -> None:
    x, y = torch.randn(512, 2048), torch.randn(512, 2048)
    fast = torch_forge.forge(chain, {"x": x, "y": y}, shop=shop)
    want = chain(x, y)
    got = fast(x=x, y=y)
    assert list(got) == ["a", "b"]
    torch.testing.assert_close(got, want)
    fast.revert()
    assert len(fast) == 0
    assert torch.equal(fast(x=x, y=y)["a"], want["a"])


def test_what_has_no_template_keeps_eager_with_a_reason(shop: Workshop) -> None:
    x = torch.randn(64, 64)
    kept = torch_forge.forge(lambda a: a @ a, (x,), shop=shop)
    assert kept.region.verdict == "kept"
    assert kept.region.why
    assert torch.equal(kept(x), x @ x)


@pytest.mark.parametrize(
    ("fn", "sample", "message"),
    [
        pytest.param(rms_norm, None, "sample of type NoneType", id="no sample"),
        pytest.param(rms_norm, (1.0, 2.0), "no tensors", id="no tensors"),
        pytest.param(torch.nn.Linear(2, 2), (torch.randn(2, 2),), "takes a function", id="a module"),
    ],
)
def test_bad_input_says_what_to_do(fn: object, sample: object, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        torch_forge.forge(fn, sample)  # type: ignore[arg-type]
    assert caught.value.advice


def test_an_unknown_policy_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="policy 'fast'") as caught:
        torch_forge.forge(rms_norm, (torch.randn(2, 2), torch.rand(2)), policy="fast")
    assert "eager-equivalent" in caught.value.advice


def test_optimize_uses_what_the_cache_holds(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = torch.randn(1024, 1024), torch.rand(1024)
    torch_forge.forge(rms_norm, (x, w), shop=shop)
    monkeypatch.setenv("TORCH_FORGE_CACHE_DIR", str(shop.settings.cache_dir))
    decorated = torch_forge.optimize(rms_norm)
    first = decorated(x, w)
    assert torch.equal(first, rms_norm(x, w))
    assert len(decorated) == 1
    torch.testing.assert_close(decorated(x, w), first)
