from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.tiny_models import Block, Hoarder, InPlace
from torch_forge.profiling.state import preserved


def fingerprint(model: nn.Module) -> dict[str, Any]:
    """Everything of a model that a user could notice, as comparable values."""
    facts: dict[str, Any] = {}
    for path, module in model.named_modules():
        for key, value in vars(module).items():
            facts[f"{path}.{key}"] = value.get_state().tolist() if isinstance(value, torch.Generator) else repr(value)
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
            facts[f"{path}.{name}"] = (id(tensor), repr(tensor), repr(getattr(tensor, "grad", None)), tensor.requires_grad)
    return facts


def random_states() -> tuple[object, ...]:
    return torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())  # noqa: NPY002


def draw() -> None:
    torch.rand(3)
    random.random()
    np.random.rand(3)  # noqa: NPY002


@pytest.mark.parametrize("model", [Block(), Hoarder()], ids=lambda m: type(m).__name__)
def test_nothing_of_the_model_or_the_generators_changes(model):
    model.train()
    x = torch.randn(8, 32)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before, states = fingerprint(model), random_states()
    grads = [id(p.grad) for p in model.parameters()]
    with preserved(model, x):
        for _ in range(3):
            model(x).sum().backward() if any(p.requires_grad for p in model.parameters()) else model(x)
        draw()
        assert fingerprint(model) != before
    assert fingerprint(model) == before
    assert random_states() == states
    assert [id(p.grad) for p in model.parameters()] == grads


def test_training_goes_on_as_if_the_model_had_never_run():
    def train(model: Block) -> list[float]:
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 32)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    touched = Block().train()
    untouched = copy.deepcopy(touched)
    x = torch.randn(8, 32)
    with preserved(touched, x):
        for _ in range(5):
            touched(x).sum().backward()
    assert train(touched) == train(untouched)
    assert fingerprint(touched).keys() == fingerprint(untouched).keys()
    for (name, a), b in zip(touched.state_dict().items(), untouched.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_inputs_are_put_back_in_place():
    model, x, cache = InPlace(), torch.ones(4), torch.ones(4)
    caches = [cache]
    with preserved(model, x, caches):
        for _ in range(2):
            model(x, caches)
        assert cache[0] == 4
    assert cache.tolist() == [1, 1, 1, 1]
    assert not x.requires_grad
    assert x.grad is None


def test_a_sample_that_became_part_of_a_graph_leaves_it_again():
    weight, x = nn.Parameter(torch.ones(4)), torch.ones(4)
    with preserved(lambda v: v.mul_(weight), x):
        x.mul_(weight)
    assert (x.requires_grad, x.grad_fn, x.tolist()) == (False, None, [1, 1, 1, 1])


def test_unchanged_tensors_are_not_written():
    model, x = Block().eval(), torch.randn(8, 32)
    versions = [t._version for t in [x, *model.buffers()]]
    with preserved(model, x):
        model(x)
    assert [t._version for t in [x, *model.buffers()]] == versions


def test_inference_tensors_are_restored():
    with torch.inference_mode():
        x = torch.ones(4)
    with preserved(torch.add, x), torch.inference_mode():
        x.add_(1)
    assert x.tolist() == [1, 1, 1, 1]


def test_writes_that_no_version_counter_shows_are_undone():
    x = torch.ones(4)
    with preserved(torch.add, x):
        x.numpy()[0] = 9
    assert x.tolist() == [1, 1, 1, 1]


def test_restored_also_after_an_exception():
    model = Block().train()
    before = fingerprint(model)

    def interrupted() -> None:
        with preserved(model):
            model(torch.randn(8, 32))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert fingerprint(model) == before


def test_every_run_after_rewind_is_the_same_run():
    model, x = Block().train(), torch.randn(8, 32)
    with preserved(model, x) as state:
        outputs = []
        for _ in range(3):
            state.rewind()
            outputs.append(model(x))
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


def test_changed_parameters_are_reported(caplog):
    model = nn.Linear(2, 2)
    with preserved(model), torch.no_grad():
        model.weight.add_(1)
    said = "running the model changed 1 of its parameters in place; they are not restored"
    assert [r.getMessage() for r in caplog.records] == [said]


FLAGS = {
    "grad": (torch.is_grad_enabled, lambda: torch.set_grad_enabled(False)),
    "dtype": (torch.get_default_dtype, lambda: torch.set_default_dtype(torch.float64)),
    "deterministic": (torch.are_deterministic_algorithms_enabled, lambda: torch.use_deterministic_algorithms(True)),
    "benchmark": (lambda: torch.backends.cudnn.benchmark, lambda: setattr(torch.backends.cudnn, "benchmark", True)),
    "precision, old form": (torch.get_float32_matmul_precision, lambda: torch.set_float32_matmul_precision("high")),
    "precision, new form": (
        lambda: (torch.backends.cuda.matmul.fp32_precision, torch.get_float32_matmul_precision()),
        lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    ),
    "autocast": (lambda: torch.is_autocast_enabled("cpu"), lambda: torch.set_autocast_enabled("cpu", True)),
}


@pytest.mark.parametrize("name", FLAGS)
def test_flags_are_put_back(name):
    get, change = FLAGS[name]
    before = get()
    with preserved(torch.add):
        change()
    assert get() == before
