"""scripts/environment.py: which torch a machine gets, and when the work is already done."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("environment_script", ROOT / "scripts" / "environment.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("machine", "role", "borrow", "build"),
    [
        (dict(), "quickstart", False, "CPU_TORCH"),
        (dict(nvcc=True), "quickstart", False, "CPU_TORCH"),
        (dict(gpu=True), "quickstart", False, "CUDA_TORCH"),
        (dict(), "test", False, "CPU_TORCH"),
        (dict(nvcc=True), "test", False, "CUDA_TORCH"),
        (dict(nvcc=True, free_gb=5.0), "test", False, "CPU_TORCH"),
        (dict(gpu=True, found_torch=(2, 11), found_cuda=True), "test", True, None),
        (dict(gpu=True, found_torch=(2, 13), found_cuda=False), "test", False, "CUDA_TORCH"),
        (dict(found_torch=(2, 13)), "quickstart", True, None),
        (dict(found_torch=(2, 9)), "quickstart", False, "CPU_TORCH"),
    ],
    ids=[
        "cpu", "nvcc without gpu", "gpu", "cpu tests", "nvcc tests", "small disk", "gpu with its torch",
        "gpu with a cpu torch", "torch is there", "old torch",
    ],
)  # fmt: skip
def test_choice_of_torch(script: ModuleType, machine: dict, role: str, borrow: bool, build: str | None):
    facts = {"gpu": False, "nvcc": False, "found_torch": None, "found_cuda": False, "free_gb": 100.0, **machine}
    choice = script.decide(script.Machine(**facts), role)
    assert (choice.borrow, choice.requirement) == (borrow, getattr(script, build) if build else "")
    assert choice.why


def test_the_torch_of_this_python_is_found_without_importing_it(script: ModuleType):
    torch = pytest.importorskip("torch")
    version, cuda = script._torch_of_this_python()
    assert torch.__version__.startswith(f"{version[0]}.{version[1]}.")
    assert cuda == bool(torch.version.cuda)


@pytest.mark.parametrize(
    ("stamped", "asked", "ready"),
    [("quickstart", "quickstart", True), ("test", "quickstart", True), ("quickstart", "test", False), (None, "test", False)],
    ids=["same", "wider", "narrower", "none"],
)
def test_a_stamp_makes_the_second_run_free(script, tmp_path, monkeypatch, stamped, asked, ready):
    monkeypatch.setattr(script, "VENV", tmp_path)
    monkeypatch.setattr(script, "PYTHON", Path(sys.executable))
    if stamped:
        script._stamp(stamped).write_text(script.stamp_text(stamped))
    assert script.is_ready(asked) == ready


def test_a_stamp_of_other_files_does_not_count(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "VENV", tmp_path)
    monkeypatch.setattr(script, "PYTHON", Path(sys.executable))
    script._stamp("test").write_text(script.stamp_text("test") + "0")
    assert not script.is_ready("test")
