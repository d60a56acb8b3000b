"""What a user gets wrong, or a machine lacks: one clear message with what to do, and the model still runs."""

from __future__ import annotations

import copy
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torch_forge
from tests.support.disks import FullDisk
from tests.support.tuning import OneRegion, every_right_kernel_wins
from torch_forge.caching.layers import Cache
from torch_forge.errors import DeviceError, ForgeError, ToolchainError, UsageError
from torch_forge.machine.host_compiler import find_host_compiler
from torch_forge.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
X = OneRegion.SHAPE


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.resolve(
        {"TORCH_FORGE_TIMING": "brief"}, cache_dir=tmp_path / "cache", budget_s=600.0, progress="off", peers="eager"
    )


def runs_as_before(model: nn.Module, x: Tensor) -> bool:
    return model._compiled_call_impl is None and torch.equal(model(x), copy.deepcopy(model)(x))


def warnings_of(log: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in log.records if r.levelno >= logging.WARNING and r.name.startswith("torch_forge")]


# What is passed


def of_no_device(_: nn.Module) -> tuple[Any, str, str]:
    return torch.empty(X, device="meta"), "unknown device 'meta'", "'cpu' or a CUDA device"


def of_no_type(_: nn.Module) -> tuple[Any, str, str]:
    return object(), "sample of type object", "Pass a tensor, a tuple or a dict"


def of_an_array(_: nn.Module) -> tuple[Any, str, str]:
    return torch.zeros(X).numpy(), "sample of type ndarray", "torch.as_tensor(sample)"


def of_a_shape(_: nn.Module) -> tuple[Any, str, str]:
    return (64, 128), "list of numbers", "torch.randn(shape"


def of_too_many(_: nn.Module) -> tuple[Any, str, str]:
    return (torch.zeros(X), torch.zeros(X)), "does not fit OneRegion", "A tuple holds the positional arguments"


def of_another_name(_: nn.Module) -> tuple[Any, str, str]:
    return {"input_ids": torch.zeros(X)}, "does not fit OneRegion", "wrap it in a tuple"


def without_data(model: nn.Module) -> tuple[Any, str, str]:
    model.table = nn.Parameter(torch.empty(4, device="meta"))
    return torch.zeros(X), "parameters without data", "Load its weights first"


@pytest.mark.parametrize(
    "case", [of_no_device, of_no_type, of_an_array, of_a_shape, of_too_many, of_another_name, without_data]
)
def test_a_call_that_cannot_be_tuned(case: Callable[[nn.Module], tuple[Any, str, str]], settings: Settings) -> None:
    model = OneRegion()
    sample, message, advice = case(model)
    with pytest.raises((UsageError, DeviceError)) as caught:
        torch_forge.autotune(model, sample, settings=settings)
    assert message in str(caught.value)
    assert advice in caught.value.advice
    model.table = None
    assert runs_as_before(model, torch.randn(X))


def test_an_exception_of_the_model_passes_through_and_leaves_no_trace(settings: Settings) -> None:
    model = nn.BatchNorm1d(128)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ValueError, match="expected 2D or 3D input"):
        torch_forge.autotune(model, torch.randn(2, 2, 2, 128), settings=settings)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert runs_as_before(model.eval(), torch.randn(X))


class Opaque(nn.Module):
    """Nothing in it can be captured."""

    @torch._dynamo.disable
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if float(x.sum()) > 0 else x


class Branching(nn.Module):
    """What it computes hangs on a value: captured in pieces, if at all."""

    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(x)
        return y * 2 if float(y.sum()) > 0 else y - 1


def test_a_model_that_cannot_be_captured(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    model, x = Opaque(), torch.randn(X)
    result = torch_forge.autotune(model, x, settings=settings)
    (warning,) = warnings_of(caplog)
    assert "found nothing to capture" in warning
    assert "The model keeps running as it was" in warning
    assert warning in result.report.notes
    assert runs_as_before(model, x)
    with pytest.raises(ForgeError, match="found nothing to capture"):
        torch_forge.autotune(model, x, settings=settings.with_(strict=True))


def test_a_branch_on_a_value_is_still_taken(settings: Settings) -> None:
    model = Branching()
    result = torch_forge.autotune(model, torch.ones(X), settings=settings, only_cached=True)
    for x in (torch.ones(X), -torch.ones(X)):
        torch.testing.assert_close(model(x), Branching()(x), rtol=0, atol=0)
    assert result.report.check is None, "the cache is empty"
    result.revert()


@pytest.mark.parametrize("tune", ["never", "first"])
def test_a_decorated_model_where_nothing_can_be_tuned(tune: str) -> None:
    @torch_forge.optimize(tune=tune)
    class Decorated(OneRegion):
        pass

    @torch_forge.optimize(tune=tune)
    def function(x: Tensor) -> Tensor:
        return F.gelu(x) * x

    x = torch.empty(X, device="meta")
    assert Decorated()(x).device == function(x).device == torch.device("meta")


# What the machine lacks


def test_no_compiler_on_the_path(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    model, x = OneRegion(), torch.randn(X)
    result = torch_forge.autotune(model, x, settings=settings)
    (warning,) = warnings_of(caplog)
    assert "no working C++ compiler" in warning
    assert "Install g++" in warning
    assert warning in result.report.notes
    assert runs_as_before(model, x)
    with pytest.raises(ToolchainError, match="no working C\\+\\+ compiler"):
        torch_forge.autotune(model, x, settings=settings.with_(strict=True))


@pytest.mark.compiler
def test_a_machine_that_stops_building_half_way(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The compilers were proven, and then the disk filled up."""

    def full(*_: Any, **__: Any) -> Any:
        raise ToolchainError("the cpu compiler cannot build:\nNo space left on device", advice="The disk is full.")

    monkeypatch.setattr("torch_forge.search.trials.build_many", full)
    model, x = OneRegion(), torch.randn(X)
    with every_right_kernel_wins():
        result = torch_forge.autotune(model, x, settings=settings)
    (warning,) = warnings_of(caplog)
    assert warning == "the cpu compiler cannot build:\nNo space left on device\nThe disk is full."
    assert any(warning in note for note in result.report.notes)
    assert not result.report.complete
    assert runs_as_before(model, x)


def test_a_full_disk_for_temporary_files_is_not_a_missing_compiler(tmp_path: Path) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo g++ && exit\necho "x.s: No space left on device" >&2; exit 1\n'
    )
    compiler.chmod(0o755)
    with pytest.raises(ToolchainError, match="No space left on device") as caught:
        find_host_compiler("", "native", (str(tmp_path),), True)
    assert "TMPDIR" in caught.value.advice
    assert "Install" not in caught.value.advice


@pytest.mark.compiler
def test_a_full_disk_for_the_cache(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("torch_forge.search.workshop.Cache", partial(Cache, files=FullDisk(room_bytes=1000)))
    model, x = OneRegion(), torch.randn(X)
    with every_right_kernel_wins():
        result = torch_forge.autotune(model, x, settings=settings)
    (warning,) = warnings_of(caplog)
    assert f"({settings.cache_dir}) cannot be written" in warning
    assert "No space left on device" in warning
    assert "TORCH_FORGE_CACHE_DIR" in warning
    assert warning in result.report.notes
    assert [r.verdict for r in result.report.regions] == ["installed"], "for this process"
    torch.testing.assert_close(model(x), OneRegion()(x), rtol=1e-4, atol=1e-5)
    result.revert()


READ_ONLY = """
import ctypes, os, sys
if os.geteuid() == 0 and sys.argv[-1] == "first":
    # The superuser writes anywhere; without CAP_DAC_OVERRIDE in the bounding set it does not after the next exec.
    PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1
    assert ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0) == 0
    os.execv(sys.executable, [sys.executable, "-c", sys.orig_argv[2], "second"])
import torch, torch_forge
from tests.support.tuning import OneRegion, every_right_kernel_wins
model, x = OneRegion(), torch.randn(OneRegion.SHAPE)
with every_right_kernel_wins():
    result = torch_forge.autotune(model, x, budget=600, progress="off")
torch.testing.assert_close(model(x), OneRegion()(x), rtol=1e-4, atol=1e-5)
print([r.verdict for r in result.report.regions], len(result.report.notes))
"""


@pytest.mark.compiler
def test_a_read_only_cache(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    root.mkdir(mode=0o555)
    settings = {"TORCH_FORGE_CACHE_DIR": str(root), "TORCH_FORGE_PEERS": "eager"}
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **settings}
    done = subprocess.run(
        [sys.executable, "-c", READ_ONLY, "first"], env=environ, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['installed'] 1\n"
    assert done.stderr.count(f"the user cache ({root}) cannot be written") == 1, done.stderr
    assert "TORCH_FORGE_CACHE_DIR" in done.stderr
    assert list(root.iterdir()) == []
