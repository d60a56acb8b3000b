"""The cache filled ahead of time, by a process that may be killed at any moment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from torch_forge.building import jobs, load_reference, read_shapes
from torch_forge.errors import UsageError

MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x, y):
        return torch.softmax(self.norm(x + y), -1) * 2, torch.nn.functional.gelu(x) * y

def get_init_inputs():
    return [512]

def get_inputs():
    return [torch.randn(512, 512), torch.randn(512, 512)]
"""


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    path = tmp_path / "my_model.py"
    path.write_text(MODEL)
    return path


def command(model: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "torch_forge.cli.main", "build-cache", str(model), "--device", "cpu", *more]


def environment(tmp_path: Path) -> dict[str, str]:
    root = Path(__file__).parents[2]
    return {
        **os.environ,
        "TORCH_FORGE_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": str(root),
        "TORCH_FORGE_PROGRESS": "off",
        "TORCH_FORGE_PEERS": "eager",
    }


@pytest.mark.compiler
@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_killed_run_is_resumed_and_a_finished_one_costs_nothing(model_file: Path, tmp_path: Path) -> None:
    first = subprocess.Popen(
        command(model_file), env=environment(tmp_path), stdout=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 400
    while time.monotonic() < deadline and first.poll() is None and not list((tmp_path / "cache").rglob("entry.json")):
        time.sleep(0.2)
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = subprocess.run(
        command(model_file), env=environment(tmp_path), capture_output=True, text=True, timeout=600, check=False
    )
    assert second.returncode == 0, second.stderr
    third = subprocess.run(
        command(model_file), env=environment(tmp_path), capture_output=True, text=True, timeout=400, check=False
    )
    assert third.returncode == 0, third.stderr
    # How many are known is left out: what a busy machine could not decide is not remembered.
    assert "regions" in third.stdout, third.stdout


def test_shapes_make_samples(model_file: Path, tmp_path: Path) -> None:
    shapes = tmp_path / "shapes.json"
    shapes.write_text(
        json.dumps([[{"shape": [4, 512]}, {"shape": [4, 512]}], {"x": {"shape": [2, 512]}, "y": {"shape": [2, 512]}}])
    )
    found = list(jobs([str(model_file)], shapes, "cpu"))
    assert [sorted(tuple(t.shape) for t in job.call.tensors) for job in found] == [[(4, 512)] * 2, [(2, 512)] * 2]


def test_a_models_parameters_become_arguments_of_the_reference(model_file: Path) -> None:
    loaded = load_reference(str(model_file), "cpu")
    fn, call = loaded.function, loaded.call
    outputs = fn(*call.args)
    assert [tuple(t.shape) for t in call.args] == [(512,), (512,), (512, 512), (512, 512)]
    assert torch.isfinite(outputs[0]).all()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        pytest.param("nowhere.py", "no file", id="file"),
        pytest.param("no_such_package_at_all:Model", "cannot import", id="module"),
        pytest.param("math:pi", "gave a float", id="not a model"),
        pytest.param("json", "defines no Model", id="no model in it"),
    ],
)
def test_a_target_that_cannot_be_loaded_says_so(target: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        list(jobs([target], None, "cpu"))


@pytest.mark.parametrize("text", ["{", "{}", "[1]", '[[{"shape": [2], "size": 3}]]'])
def test_a_bad_shape_list_says_so(text: str, tmp_path: Path, model_file: Path) -> None:
    path = tmp_path / "shapes.json"
    path.write_text(text)
    with pytest.raises(UsageError):
        list(jobs([str(model_file)], path, "cpu"))
    if text in ("{", "{}", "[1]"):
        with pytest.raises(UsageError):
            read_shapes(path)
