"""What a tuned model still is: the same state, the same gradients, and eager's results for whatever it is called with.

Every case asserts whether the kernel served the call: a comparison of eager with eager shows nothing.
"""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

import torch_forge
from tests.support.tuning import every_right_kernel_wins
from torch_forge.pipeline import TuneResult
from torch_forge.settings import Settings

pytestmark = pytest.mark.compiler

ROWS, WIDTH, WORDS = 64, 128, 32


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        h = x.float()
        return self.weight * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Language(nn.Module):
    """One matrix for both ends, as in most language models."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.first, self.second = Norm(), Norm()
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.embed(ids) + x
        y = self.second(F.gelu(self.first(h)) * h + h)
        return y, self.head(y[:8])


class Trained(nn.Module):
    """Everything that a training step moves: statistics, a counter, random numbers, gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.batch, self.dropout = Norm(), nn.BatchNorm1d(WIDTH), nn.Dropout(0.1)
        self.head = nn.Linear(WIDTH, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.batch(self.norm(F.gelu(x) * x + x))
        return y, self.head(self.dropout(y[:8]))


@dataclass
class Tuned:
    """A tuned model and how often its kernels were called."""

    model: nn.Module
    result: TuneResult

    def call(self, *args: Any) -> tuple[Any, int]:
        """The outputs, and the calls that forged kernels served."""
        assert self.result._installed is not None, self.result.summary()
        before = self.result._installed.calls
        outputs = self.model(*args)
        return outputs, self.result._installed.calls - before

    def agrees(self, *args: Any, served: bool) -> None:
        """A plain copy of the model returns the same for the same arguments: to the bit where no kernel served."""
        got, calls = self.call(*args)
        want = copy.deepcopy(self.model)(*args)
        assert (calls > 0) is served
        tolerance = {"rtol": 1e-4, "atol": 1e-4} if served else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(got, want, **tolerance, equal_nan=True, check_stride=True)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings.resolve(
        {"TORCH_FORGE_TIMING": "brief"},
        cache_dir=tmp_path_factory.mktemp("cache"),
        budget_s=600.0,
        progress="off",
        peers="eager",
    )


@pytest.fixture(scope="module")
def tune(settings: Settings) -> Callable[..., Tuned]:
    def run(model: nn.Module, sample: Any, **options: Any) -> Tuned:
        with every_right_kernel_wins():
            result = torch_forge.autotune(model, sample, settings=settings, **options)
        assert result.report.check is not None, result.summary()
        assert result.report.check.accepted, result.summary()
        return Tuned(model, result)

    return run


@pytest.fixture(scope="module")
def language(tune: Callable[..., Tuned]) -> Iterator[Tuned]:
    torch.manual_seed(0)
    with torch.no_grad():
        tuned = tune(Language().eval(), (ids(), torch.randn(ROWS, WIDTH)))
    yield tuned
    tuned.result.revert()


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield


def ids() -> Tensor:
    return torch.arange(ROWS) % WORDS


def test_tied_weights_stay_one_tensor(language: Tuned) -> None:
    model, x = language.model, torch.randn(ROWS, WIDTH)
    assert model.head.weight is model.embed.weight
    assert list(model.state_dict()) == list(Language().state_dict())
    for end in (model.embed, model.head):
        (_, before), _ = language.call(ids(), x)
        end.weight.mul_(1.5)
        (_, after), _ = language.call(ids(), x)
        assert not torch.allclose(before, after)
        language.agrees(ids(), x, served=True)


def load(model: nn.Module) -> None:
    torch.manual_seed(1)
    model.load_state_dict(Language().state_dict())


def load_by_assignment(model: nn.Module) -> None:
    torch.manual_seed(2)
    model.load_state_dict(Language().state_dict(), assign=True)
    model.head.weight = model.embed.weight


def train_a_step(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    model.zero_grad()


def replace_a_parameter(model: nn.Module) -> None:
    model.second.weight = nn.Parameter(torch.rand(WIDTH) + 0.5)


@pytest.mark.parametrize("change", [load, load_by_assignment, train_a_step, replace_a_parameter])
def test_new_weights_are_used(language: Tuned, change: Callable[[nn.Module], None]) -> None:
    x = torch.randn(ROWS, WIDTH)
    (before, _), _ = language.call(ids(), x)
    change(language.model)
    language.agrees(ids(), x, served=True)
    (after, _), _ = language.call(ids(), x)
    assert not torch.allclose(before, after)


def spoiled(x: Tensor) -> Tensor:
    x[0, 0], x[1, 3], x[2, 5] = torch.nan, torch.inf, -torch.inf
    x[3], x[4] = 1e30, 1e-30
    return x


INPUTS: dict[str, tuple[Callable[[], tuple[Tensor, Tensor]], bool]] = {
    "as tuned": (lambda: (ids(), torch.randn(ROWS, WIDTH)), True),
    "not finite, huge and tiny": (lambda: (ids(), spoiled(torch.randn(ROWS, WIDTH))), True),
    "not aligned": (lambda: (ids(), torch.randn(ROWS * WIDTH + 1)[1:].view(ROWS, WIDTH)), True),
    "transposed": (lambda: (ids(), torch.randn(WIDTH, ROWS).t()), False),
    "every second column": (lambda: (ids(), torch.randn(ROWS, 2 * WIDTH)[:, ::2]), False),
    "expanded": (lambda: (ids(), torch.randn(1, WIDTH).expand(ROWS, WIDTH)), False),
    "empty batch": (lambda: (ids()[:0], torch.randn(0, WIDTH)), False),
    "one row": (lambda: (ids()[:1], torch.randn(1, WIDTH)), False),
    "other index type": (lambda: (ids().int(), torch.randn(ROWS, WIDTH)), False),
    "negative view": (lambda: (ids(), torch.randn(ROWS, WIDTH, dtype=torch.complex64).conj().imag), False),
    "parameter as input": (lambda: (ids(), nn.Parameter(torch.randn(ROWS, WIDTH))), False),
}


@pytest.mark.parametrize(("make", "served"), INPUTS.values(), ids=INPUTS)
def test_inputs(language: Tuned, make: Callable[[], tuple[Tensor, Tensor]], served: bool) -> None:
    language.agrees(*make(), served=served)


def test_not_aligned_means_not_aligned() -> None:
    assert torch.randn(ROWS * WIDTH + 1)[1:].data_ptr() % 16 != 0


def test_an_input_on_another_device_is_eagers_error(language: Tuned) -> None:
    arguments = (ids(), torch.randn(ROWS, WIDTH, device="meta"))
    with pytest.raises(RuntimeError) as eagers:
        copy.deepcopy(language.model)(*arguments)
    with pytest.raises(RuntimeError) as ours:
        language.model(*arguments)
    assert str(ours.value) == str(eagers.value)


def test_autocast_of_a_model_tuned_without_it_is_eagers(language: Tuned) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        language.agrees(ids(), torch.randn(ROWS, WIDTH), served=False)
        assert language.model(ids(), torch.randn(ROWS, WIDTH))[1].dtype == torch.bfloat16


def test_a_model_tuned_under_autocast(language: Tuned, tune: Callable[..., Tuned]) -> None:
    """Its kernels are those of the region outside autocast's reach; the product stays in half precision."""
    x = torch.randn(ROWS, WIDTH)
    with torch.autocast("cpu", torch.bfloat16):
        tuned = tune(Language().eval(), (ids(), x))
        (got, logits), calls = tuned.call(ids(), x)
        want, wanted_logits = copy.deepcopy(tuned.model)(ids(), x)
    assert calls > 0
    assert (got.dtype, logits.dtype) == (want.dtype, wanted_logits.dtype) == (torch.float32, torch.bfloat16)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logits, wanted_logits, rtol=2**-7, atol=0.1)
    tuned.agrees(ids(), x, served=False)
    tuned.result.revert()


def test_modes_that_were_not_tuned_run_eager(language: Tuned) -> None:
    x = torch.randn(ROWS, WIDTH)
    with torch.enable_grad():
        language.agrees(ids(), x, served=False)
        (y, _), _ = language.call(ids(), x)
        assert y.requires_grad
    with torch.inference_mode():
        language.agrees(ids(), x, served=False)
    language.model.train()
    language.agrees(ids(), x, served=False)
    language.model.eval()
    language.agrees(ids(), x, served=True)


def test_hooks_that_come_later_are_called(language: Tuned) -> None:
    """The tuned path is compiled already when the hook comes, and again when it goes."""
    model, x = language.model, torch.randn(ROWS, WIDTH)
    language.agrees(ids(), x, served=True)
    for hook in (
        model.first.register_forward_hook(lambda _module, _inputs, y: y * 2),
        model.second.register_forward_pre_hook(lambda _module, inputs: (inputs[0] + 1,)),
        model.head.register_forward_hook(lambda _module, _inputs, y: y - 1),
        model.register_forward_hook(lambda _module, _inputs, y: (y[0] * 3, y[1])),
    ):
        (got, logits), _ = language.call(ids(), x)
        want, wanted_logits = copy.deepcopy(model)(ids(), x)
        torch.testing.assert_close((got, logits), (want, wanted_logits), rtol=1e-4, atol=1e-4)
        hook.remove()
    language.agrees(ids(), x, served=True)


def test_hooks_on_every_module_are_called(language: Tuned) -> None:
    x, called = torch.randn(ROWS, WIDTH), list[str]()
    language.call(ids(), x)
    hook = register_module_forward_hook(lambda module, _inputs, _outputs: called.append(type(module).__name__))
    try:
        language.agrees(ids(), x, served=False)
    finally:
        hook.remove()
    assert called == 2 * ["Embedding", "Norm", "Norm", "Linear", "Language"]


def test_layouts_and_sizes_of_the_class_need_no_compiler(language: Tuned, tune: Callable[..., Tuned]) -> None:
    """Sizes and strides are parameters of a kernel: its certificate lets it serve another layout as it is."""
    for sample in (
        (ids(), torch.randn(ROWS, 2 * WIDTH)[:, :WIDTH]),
        (ids()[:48], torch.randn(48, WIDTH)),
    ):
        tuned = tune(Language().eval(), sample, only_cached=True)
        tuned.agrees(*sample, served=True)
        tuned.result.revert()


def test_an_empty_batch_can_be_the_sample(settings: Settings) -> None:
    model, sample = Language().eval(), (ids()[:0], torch.randn(0, WIDTH))
    result = torch_forge.autotune(model, sample, settings=settings, only_cached=True)
    torch.testing.assert_close(model(*sample), copy.deepcopy(model)(*sample), rtol=0, atol=0)
    result.revert()


class TwoDevices(nn.Module):
    """Part of its input is on a device where nothing can be tuned."""

    def forward(self, x: Tensor, shape: Tensor) -> Tensor:
        return F.gelu(x.view(shape.shape)) + x


def test_a_second_device_is_left_alone_and_reported(settings: Settings) -> None:
    model, x, shape = TwoDevices(), torch.randn(ROWS, WIDTH), torch.empty(ROWS, WIDTH, device="meta")
    want = model(x, shape)
    result = torch_forge.autotune(model, (x, shape), settings=settings, only_cached=True)
    assert any("on several devices; cpu is tuned, not meta" in note for note in result.report.notes)
    torch.testing.assert_close(model(x, shape), want, rtol=0, atol=0)
    result.revert()


# Training


def ambient() -> dict[str, Any]:
    return {
        "numbers": (torch.get_rng_state().tolist(), random.getstate()),
        "environment": dict(os.environ),
        "torch": (torch.get_default_dtype(), torch.get_num_threads(), torch.get_float32_matmul_precision()),
        "modes": (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.are_deterministic_algorithms_enabled()),
    }


@pytest.fixture(scope="module")
def trained(tune: Callable[..., Tuned]) -> Iterator[tuple[Tuned, dict[str, Tensor], Tensor, tuple[Any, Any]]]:
    """A model tuned for training; what it held before, the sample, and the surroundings before and after."""
    torch.manual_seed(0)
    model, x = Trained().train(), torch.randn(ROWS, WIDTH, requires_grad=True)
    with torch.enable_grad():
        model(x)[0].sum().backward()
        held = {name: tensor.clone() for name, tensor in state(model, x).items()}
        before = ambient()
        tuned = tune(model, x)
    yield tuned, held, x, (before, ambient())
    tuned.result.revert()


def state(model: nn.Module, *inputs: Tensor) -> dict[str, Tensor]:
    """Weights, buffers and gradients by name."""
    gradients = {f"{name}.grad": p.grad for name, p in model.named_parameters() if p.grad is not None}
    of_inputs = {f"input {k}.grad": t.grad for k, t in enumerate(inputs) if t.grad is not None}
    return {**model.state_dict(), **gradients, **of_inputs}


@pytest.mark.parametrize("what", ["numbers", "environment", "torch", "modes"])
def test_tuning_leaves_the_surroundings(
    trained: tuple[Tuned, dict[str, Tensor], Tensor, tuple[Any, Any]], what: str
) -> None:
    before, after = trained[3]
    assert after[what] == before[what]


def test_tuning_leaves_weights_statistics_gradients_and_modes(
    trained: tuple[Tuned, dict[str, Tensor], Tensor, tuple[Any, Any]],
) -> None:
    tuned, held, x, _ = trained
    assert tuned.model.batch.num_batches_tracked == 1
    now = state(tuned.model, x)
    assert list(now) == list(held)
    assert "input 0.grad" in held
    for name, tensor in held.items():
        assert torch.equal(now[name], tensor), name
    assert all(module.training for module in tuned.model.modules())
    assert all(parameter.requires_grad for parameter in tuned.model.parameters())


def test_steps_of_a_tuned_model_are_eagers(trained: tuple[Tuned, dict[str, Tensor], Tensor, tuple[Any, Any]]) -> None:
    """Outputs, gradients, statistics and the random numbers drawn, over two steps; the second starts from the first."""
    tuned, _, _, _ = trained
    plain = copy.deepcopy(tuned.model)
    for seed in (1, 2):
        after = []
        for call in (tuned.call, lambda x: (plain(x), 0)):
            model = tuned.model if call == tuned.call else plain
            torch.manual_seed(seed)
            x = torch.randn(ROWS, WIDTH, requires_grad=True)
            with torch.enable_grad():
                model.zero_grad()
                (y, logits), calls = call(x)
                (y.square().mean() + logits.sum()).backward()
            assert (calls > 0) is (model is tuned.model)
            after.append({**state(model, x), "y": y.detach(), "logits": logits.detach(), "numbers": torch.get_rng_state()})
            torch.optim.SGD(model.parameters(), lr=0.01).step()
        torch.testing.assert_close(*after, rtol=1e-4, atol=1e-5)
