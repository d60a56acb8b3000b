"""The published CUDA kernels pass the source gate and compile where there is no GPU."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.gpu.published.catalogue import PUBLISHED
from tests.support.launching import INCLUDE
from torch_forge.validation.static.source import source_reasons

NATIVE = [name for name, kernel in PUBLISHED.items() if kernel.kind == "cu"]


@pytest.mark.parametrize("name", NATIVE)
def test_the_source_gate_lets_it_through(name: str):
    assert source_reasons(PUBLISHED[name].source, "cuda") == []


@pytest.mark.nvcc(direct=True)
@pytest.mark.parametrize("name", NATIVE)
def test_it_compiles(tmp_path: Path, name: str):
    file = tmp_path / f"{name}.cu"
    file.write_text(PUBLISHED[name].source)
    command = ["nvcc", "-std=c++17", "-arch=sm_90", "-c", f"-I{INCLUDE}", str(file), "-o", str(file.with_suffix(".o"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
