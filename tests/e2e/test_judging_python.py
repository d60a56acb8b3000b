"""Python candidates: a ``ModelNew`` or a function, as published kernels come; their results must be plain and their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import torch_forge
from torch_forge.building import Reference, load_reference
from torch_forge.errors import UsageError
from torch_forge.search.workshop import Workshop
from torch_forge.settings import Settings

SAMPLE = (torch.randn(33, 64),)
RIGHT = """
import numpy as np
import torch

def candidate(x):
    y = torch.empty_like(x)
    np.multiply(x.numpy(), np.float32(2), out=y.numpy())
    np.add(y.numpy(), np.float32(1), out=y.numpy())
    return y
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    with Workshop.open("cpu", Settings.resolve({}, cache_dir=tmp_path_factory.mktemp("cache"))) as opened:
        yield opened


def reference(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def test_a_right_function_is_accepted(shop: Workshop):
    judged = torch_forge.judge(reference, RIGHT, SAMPLE, shop=shop, timing=False)
    assert judged.accepted, str(judged)
    assert "result form" in judged.gates.met


def test_a_file_with_a_dataclass_is_a_module_like_any_other(shop: Workshop):
    source = f"""from __future__ import annotations
from dataclasses import dataclass

@dataclass
class Launch:
    warps: int
{RIGHT}"""
    judged = torch_forge.judge(reference, source, SAMPLE, shop=shop, timing=False, without=("sanitizers",))
    assert judged.accepted, str(judged)


WRONG = {
    "torch does the work": ("def candidate(x):\n    return x * 2 + 1\n", "own work"),
    "two results": (RIGHT.replace("return y", "return y, y"), "result form"),
    "another type": (RIGHT.replace("return y", "return y.double()"), "own work"),
    "a view of the input": ("def candidate(x):\n    return x.view(33, 64)\n", "result form"),
    "transposed strides": (
        RIGHT.replace("torch.empty_like(x)", "torch.empty_strided((33, 64), (1, 33))"), "result form",
    ),
    "a subclass": (
        RIGHT.replace("return y", "return y.as_subclass(Lazy)") + "class Lazy(torch.Tensor):\n    pass\n", "result form",
    ),
    "the same buffer every time": (
        RIGHT.replace("torch.empty_like(x)", "KEPT.setdefault(0, torch.empty_like(x))") + "KEPT = {}\n", "kept outputs",
    ),
    "remembers by pointer": (
        "KEPT = {}\n" + RIGHT.replace("return y", "return KEPT.setdefault(x.data_ptr(), y)"), "same pointers",
    ),
    "works in its input": (RIGHT.replace("return y", "x.numpy()[0, 0] = 1\n    return y"), "keeps inputs"),
    "raises": ("def candidate(x):\n    raise ValueError('no')\n", "survives"),
    "nothing to call": ("import torch\n", "result form"),
    "no Python": ("def candidate(x) return x\n", "source"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_function_names_its_gate(shop: Workshop, name: str):
    source, gate = WRONG[name]
    judged = torch_forge.judge(reference, source, SAMPLE, shop=shop, timing=False)
    assert judged.gate == gate, str(judged)
    assert str(judged).startswith(f"rejected by {gate!r}")


MODEL = """
import torch

class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * self.scale

def get_init_inputs():
    return [64]

def get_inputs():
    return [torch.randn(8, 64)]
"""
MODEL_NEW = """
import numpy as np
import torch

class ModelNew(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(width))

    def forward(self, x):
        y = torch.empty_like(x)
        np.multiply(x.numpy(), SCALE, out=y.numpy())
        return y
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    path = tmp_path_factory.mktemp("reference") / "reference.py"
    path.write_text(MODEL)
    return load_reference(str(path), "cpu")


def test_the_parameters_of_a_model_are_inputs_and_change(shop: Workshop, model: Reference):
    right = MODEL_NEW.replace("SCALE", "self.scale.detach().numpy()")
    judged = torch_forge.judge(model, right, shop=shop, timing=False)
    assert judged.accepted, str(judged)
    for scale in ("1.0", "self.__dict__.setdefault('kept', self.scale.detach().numpy().copy())"):
        assert torch_forge.judge(model, MODEL_NEW.replace("SCALE", scale), shop=shop, timing=False).gate in (
            "is right", "same pointers",
        )  # fmt: skip


def test_parameters_of_other_names_cannot_be_judged(shop: Workshop, model: Reference):
    judged = torch_forge.judge(model, MODEL_NEW.replace("self.scale", "self.weight"), shop=shop, timing=False)
    assert judged.gate == "result form"
    assert "has no scale" in str(judged)


def test_a_module_is_a_reference(shop: Workshop):
    judged = torch_forge.judge(torch.nn.ReLU(), "def candidate(x):\n    return x\n", SAMPLE, shop=shop, timing=False)
    assert judged.gate == "result form"


def test_what_cannot_be_asked_is_a_usage_error(shop: Workshop, tmp_path: Path):
    with pytest.raises(UsageError, match="no sample"):
        torch_forge.judge(reference, RIGHT, shop=shop)
    with pytest.raises(UsageError, match="no gate"):
        torch_forge.judge(reference, RIGHT, SAMPLE, shop=shop, without=("speed",))
