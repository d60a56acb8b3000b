"""What holds for every test: a need that is missing is a skip with its reason (or, for the GPU, a failure when
``TORCH_FORGE_REQUIRE_GPU=1``), the cache is private, random numbers start the same, and nothing reaches the network."""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import socket
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

REQUIRE_GPU = os.environ.get("TORCH_FORGE_REQUIRE_GPU") == "1"
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
# Tests run side by side, with more threads than cores: those that wait are not to burn a core meanwhile (4 times faster).
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@cache
def _gpu() -> str:
    import torch

    return "" if torch.cuda.is_available() else "needs an NVIDIA GPU"


@cache
def _compiler() -> str:
    cxx = os.environ.get("CXX", "g++")
    return "" if shutil.which(cxx) else f"needs a C++ compiler ({cxx} is not on PATH)"


@cache
def _nvcc(direct: bool = False) -> str:
    spec = importlib.util.find_spec("nvidia")
    homes = [
        os.environ.get("CUDA_HOME", ""),
        "/usr/local/cuda",
        *(f"{p}/cu13" for p in (spec and spec.submodule_search_locations) or ()),
    ]
    if not shutil.which("nvcc") and not any(home and Path(home, "bin", "nvcc").exists() for home in homes):
        return "needs nvcc"
    if direct:
        return ""
    import torch

    return "" if torch.version.cuda else "needs a CUDA build of torch (this is a CPU build)"


@cache
def _transformers() -> str:
    return "" if importlib.util.find_spec("transformers") else "needs the transformers package (extra `models`)"


NEEDS: dict[str, Callable[..., str]] = {"gpu": _gpu, "compiler": _compiler, "nvcc": _nvcc, "transformers": _transformers}
"""Marker -> why this machine cannot run the test, or nothing. The marker's arguments are passed on."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker in item.iter_markers():
            need = NEEDS.get(marker.name)
            reason = need(*marker.args, **marker.kwargs) if need else ""
            if reason and not (marker.name == "gpu" and REQUIRE_GPU):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """A GPU run may not skip what it is there for, whoever asks for the skip."""
    report = yield
    if REQUIRE_GPU and report.skipped and item.get_closest_marker("gpu") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"TORCH_FORGE_REQUIRE_GPU=1 forbids this skip: {report.longrepr}"
    return report


@pytest.fixture(autouse=True)
def private_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test sees the developer's settings or cache."""
    for name in os.environ:
        if name.startswith("TORCH_FORGE_") and name != "TORCH_FORGE_REQUIRE_GPU":
            monkeypatch.delenv(name)
    monkeypatch.setenv("TORCH_FORGE_CACHE_DIR", str(tmp_path / "forge-cache"))
    # On a machine that runs several tests at once the protocol would call everything noise, rightly.
    monkeypatch.setenv("TORCH_FORGE_TIMING", "brief")


@pytest.fixture(autouse=True)
def same_seed() -> None:
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections leave this machine for no test; loopback servers are allowed."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        outward = self.family in (socket.AF_INET, socket.AF_INET6)
        if outward and str(address[0]) not in ("127.0.0.1", "::1", "localhost"):
            raise AssertionError(f"a test tried to connect to {address!r}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)
