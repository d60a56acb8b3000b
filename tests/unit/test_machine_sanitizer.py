"""Which compute-sanitizer is taken: the toolkit's own, then one on PATH; one that does not run is passed over."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_forge.machine import cuda_toolkit
from torch_forge.machine.cuda_toolkit import find_compute_sanitizer


def program(folder: Path, script: str = 'echo "NVIDIA (R) Compute Sanitizer\nVersion 2025.3.1.0 (build 1)"') -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "compute-sanitizer"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return str(path)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A toolkit without the tool, and nothing else on this machine."""
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(cuda_toolkit.glob, "glob", lambda pattern: [])
    return str(tmp_path / "toolkit")


@pytest.mark.parametrize("part", ["bin", "compute-sanitizer"])
def test_the_toolkits_own_is_taken_first(home: str, tmp_path: Path, part: str):
    program(tmp_path / "path")
    own = program(Path(home) / part)
    assert find_compute_sanitizer(home) == (own, f"compute-sanitizer 2025.3.1.0 ({own})")


def test_one_on_path_is_next(home: str, tmp_path: Path):
    program(Path(home) / "bin", "echo 'libfoo.so: cannot open shared object file' >&2; exit 127")
    other = program(tmp_path / "path")
    assert find_compute_sanitizer(home)[0] == other


def test_the_reason_where_none_runs(home: str):
    broken = program(Path(home) / "bin", "echo 'libfoo.so: cannot open shared object file' >&2; exit 127")
    assert find_compute_sanitizer(home) == ("", f"{broken} does not run: libfoo.so: cannot open shared object file")


def test_none_at_all(home: str):
    assert find_compute_sanitizer(home) == ("", "there is no compute-sanitizer, neither in the CUDA toolkit nor on PATH")
