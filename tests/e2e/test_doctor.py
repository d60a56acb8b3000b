"""``torch-forge doctor`` names what works, what does not, why, and what to change."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from torch_forge.cli import doctor
from torch_forge.errors import ToolchainError
from torch_forge.records import sandbox as layer
from torch_forge.records.sandbox import SandboxReport
from torch_forge.settings import Settings


def line(lines: list[str], text: str) -> str:
    return next(line for line in lines if text in line)


@pytest.mark.compiler
def test_a_machine_that_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert doctor.run(Namespace(), Settings.resolve(cache_dir=tmp_path / "cache")) == 0
    lines = capsys.readouterr().out.splitlines()
    for text in (
        "torch ",
        "device cpu",
        "compilers for cpu",
        "worker processes",
        "sandbox: ",
        f"cache {tmp_path / 'cache'}",
    ):
        assert line(lines, text).startswith(doctor.OK), text
    assert all(entry[:4] in (doctor.OK, doctor.BAD, doctor.INFO) for entry in lines)
    assert not (tmp_path / "cache").exists()


def test_a_machine_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(doctor, "_workers", lambda _: iter(()))  # seconds, and shown above
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    code = doctor.run(Namespace(), Settings.resolve(cxx="/nonexistent/g++", cuda_home="/nonexistent/cuda", cache_dir=shared))
    assert code == ToolchainError.exit_code
    lines = capsys.readouterr().out.splitlines()
    assert line(lines, "compilers for cpu").startswith(doctor.BAD)
    assert "No such file" in line(lines, "refused /nonexistent/g++ (CXX)")
    assert line(lines, "set CXX to a compiler that works")
    assert line(lines, "others may write to it").startswith(doctor.BAD)


@pytest.mark.parametrize(
    ("absent", "mark", "says"),
    [
        ((), doctor.OK, "sandbox: user namespace, pid namespace"),
        ((layer.TCP,), doctor.OK, "without landlock tcp: too old; needs Linux 6.7"),
        ((layer.USER, layer.PIDS), doctor.BAD, "(TORCH_FORGE_SANDBOX=require): pid namespace"),
        (tuple(layer.LAYERS), doctor.BAD, "none of its layers works"),
    ],
    ids=["all", "one less", "below the minimum", "nothing"],
)
def test_the_sandbox(absent: tuple[str, ...], mark: str, says: str):
    active = tuple(name for name in layer.LAYERS if name not in absent)
    lines = list(doctor.sandbox_lines(SandboxReport(active, dict.fromkeys(absent, "too old")), switched_off=False))
    assert lines[0].startswith(mark)
    assert line(lines, says)
    assert sum("without " in entry for entry in lines) == len(absent)


def test_a_sandbox_that_is_switched_off():
    (only,) = doctor.sandbox_lines(SandboxReport(), switched_off=True)
    assert only.startswith(doctor.INFO)
