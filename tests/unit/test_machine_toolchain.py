"""Compilers are taken because they work. Here they are shell scripts that work, fail or lie in one particular way."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from torch_forge.errors import ToolchainError
from torch_forge.machine import cuda_toolkit, host_compiler, toolchain
from torch_forge.records.device import DeviceInfo
from torch_forge.settings import Settings

CXX = 'case "$*" in *--version*) echo "g++ (Fake) 12.2.0";; *) {body};; esac'
"""A compiler that has a banner and does ``body`` when it is to compile."""
WRITES_OUTPUT = 'while [ $# -gt 1 ]; do [ "$1" = -o ] && : > "$2"; shift; done'
NVCC = """
case "$*" in
  *--version*) echo "Cuda compilation tools, release {release}, V{release}.88";;
  *--list-gpu-arch*) printf 'compute_75\\ncompute_80\\ncompute_90\\ncompute_120\\n';;
  *--dryrun*) echo "#$ TOP={top}" >&2;;
  *) {body};;
esac
"""
HOST_ERROR = (
    "/opt/cuda/include/crt/host_config.h:143:2: error: #error -- unsupported GNU version! gcc versions later than 12 are "
    "not supported!"
)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A toolkit of CUDA 13 beside none of the machine's own."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr("glob.glob", lambda pattern: [])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    real = Path.is_dir
    monkeypatch.setattr("os.path.isdir", lambda path: str(path) != "/usr/local/cuda" and real(Path(path)))


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH but for the shell's own tools."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("sh", "cat", "printf"):
        (folder / tool).symlink_to(shutil.which(tool) or "")
    monkeypatch.setenv("PATH", str(folder))
    return folder


def script(file: Path, body: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)
    return file


def toolkit(home: Path, *, release: str = "13.0", body: str = WRITES_OUTPUT, headers: bool = True) -> Path:
    script(home / "bin" / "nvcc", NVCC.format(release=release, body=body, top=home))
    if headers:
        (home / "include").mkdir()
        (home / "include" / "cuda_runtime.h").write_text("")
    return home


def settings(**arguments: str) -> Settings:
    return Settings.resolve({"HOME": "/nonexistent"}, **arguments)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("echo 'check.cpp:2:10: fatal error: cstdint: No such file or directory' >&2; exit 1", "cstdint: No such file"),
        ("echo 'cannot find -lgomp' >&2; exit 1", "cannot find -lgomp"),
        ("exit 4", "status 4 and no message"),
    ],
    ids=["no headers", "no OpenMP", "silent"],
)
def test_a_compiler_that_cannot_compile_is_refused_with_its_reason(path: Path, body: str, reason: str):
    script(path / "g++", CXX.format(body=body))
    with pytest.raises(ToolchainError, match=reason) as caught:
        toolchain.find_toolchain(settings(), "cpu")
    assert "CXX" in caught.value.advice


def test_the_next_one_on_the_path_is_tried(path: Path):
    script(path / "g++", CXX.format(body="exit 1"))
    script(path / "clang++", CXX.format(body=WRITES_OUTPUT))
    found = toolchain.find_toolchain(settings(), "cpu")
    assert found.cxx == str(path / "clang++")
    assert [note.split()[0] for note in found.notes] == ["refused", "taken"]


def test_a_named_compiler_is_the_only_one(path: Path):
    script(path / "g++", CXX.format(body=WRITES_OUTPUT))
    with pytest.raises(ToolchainError, match="/nonexistent/c"):
        toolchain.find_toolchain(settings(cxx="/nonexistent/c++"), "cpu")


def test_no_compiler_at_all(path: Path):
    with pytest.raises(ToolchainError, match="no working C"):
        toolchain.find_toolchain(settings(), "cpu")


def test_versions_alone_run_no_compiler(path: Path, tmp_path: Path):
    script(path / "g++", CXX.format(body=f": > {tmp_path}/called; exit 1"))
    assert toolchain.find_toolchain(settings(), "cpu", check=False).cxx_version == "g++ (Fake) 12.2.0"
    assert not (tmp_path / "called").exists()


def test_proven_once(path: Path, tmp_path: Path):
    script(path / "g++", CXX.format(body=f"echo x >> {tmp_path}/calls; {WRITES_OUTPUT}"))
    for _ in range(3):
        toolchain.find_toolchain(settings(), "cpu")
    assert (tmp_path / "calls").read_text() == "x\n"


def test_the_cpu_never_looks_at_cuda(path: Path, tmp_path: Path):
    script(path / "g++", CXX.format(body=WRITES_OUTPUT))
    script(path / "nvcc", f": > {tmp_path}/called")
    found = toolchain.find_toolchain(settings(cuda_home="/nonexistent"), "cpu")
    assert (found.nvcc, found.cuda_home, found.cuda_archs) == (None, None, ())
    assert not (tmp_path / "called").exists()


def test_compilers_with_different_banners_have_different_keys(path: Path):
    script(path / "g++", CXX.format(body=WRITES_OUTPUT))
    other = script(path / "other", CXX.format(body=WRITES_OUTPUT).replace("Fake", "Vendor"))
    first, second = (toolchain.find_toolchain(settings(cxx=cxx), "cpu") for cxx in (str(path / "g++"), str(other)))
    assert first.key != second.key
    assert first.key == toolchain.find_toolchain(settings(), "cpu").key


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("g++", "g++"),
        ("ccache g++ -m64", "g++"),
        ("/opt/my compiler", "/opt/my"),
        ("'/opt/my compiler'", "/opt/my compiler"),
    ],
)
def test_the_program_in_a_command(command: str, program: str):
    assert toolchain.program_of(command) == program


def _named(path: Path, home: Path) -> dict[str, str]:
    return {"cuda_home": str(toolkit(home))}


def _linked(path: Path, home: Path) -> dict[str, str]:
    (path / "nvcc").symlink_to(toolkit(home) / "bin" / "nvcc")
    return {}


def _wrapped(path: Path, home: Path) -> dict[str, str]:
    script(path / "nvcc", f'exec {toolkit(home)}/bin/nvcc "$@"')
    return {}


def _after_a_wrong_name(path: Path, home: Path) -> dict[str, str]:
    _wrapped(path, home)
    return {"cuda_home": "/nonexistent/cuda"}


@pytest.mark.parametrize("arrange", [_named, _linked, _wrapped, _after_a_wrong_name], ids=lambda f: f.__name__)
def test_the_toolkit_behind_an_nvcc(path: Path, tmp_path: Path, arrange: Callable[[Path, Path], dict[str, str]]):
    script(path / "g++", CXX.format(body=WRITES_OUTPUT))
    home = tmp_path / "opt" / "cuda-13.0"
    found = toolchain.find_toolchain(settings(**arrange(path, home)), "cuda")
    assert (found.cuda_home, found.nvcc, found.nvcc_version) == (str(home), f"{home}/bin/nvcc", "13.0.88")
    assert found.notes[-1].startswith("taken CUDA toolkit")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"headers": False}, "there is no include/cuda_runtime.h"),
        ({"release": "12.4"}, "it is CUDA 12.4.88, torch was built for CUDA 13.0"),
        ({"body": f"echo '{HOST_ERROR}' >&2; exit 1"}, "unsupported GNU version"),
    ],
    ids=["no headers", "other major version", "refuses the host compiler"],
)
def test_a_toolkit_is_refused_with_its_reason(path: Path, tmp_path: Path, arguments: dict[str, str], reason: str):
    script(path / "g++", CXX.format(body=WRITES_OUTPUT))
    home = toolkit(tmp_path / "cuda", **arguments)  # type: ignore[arg-type]
    with pytest.raises(ToolchainError, match=reason) as caught:
        toolchain.find_toolchain(settings(cuda_home=str(home)), "cuda")
    assert str(home) in str(caught.value)
    assert "CUDA_HOME" in caught.value.advice


def test_no_toolkit_at_all(path: Path):
    script(path / "g++", CXX.format(body=WRITES_OUTPUT))
    with pytest.raises(ToolchainError, match="no nvcc on PATH"):
        toolchain.find_toolchain(settings(), "cuda")


def test_torch_without_cuda(path: Path, monkeypatch: pytest.MonkeyPatch):
    script(path / "g++", CXX.format(body=WRITES_OUTPUT))
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(ToolchainError, match="built without CUDA"):
        toolchain.find_toolchain(settings(), "cuda")


@pytest.mark.parametrize(
    ("wanted", "arch", "expected"),
    [
        ("", None, ("9.0a",)),
        ("", "sm_80", ("8.0",)),
        ("", "sm_90", ("9.0a",)),
        ("", "sm_130", ("12.0+PTX",)),
        ("native", "sm_75", ("7.5",)),
        ("8.0;9.0+PTX", "sm_90", ("8.0", "9.0+PTX")),
        ("8.0 9.0", None, ("8.0", "9.0")),
        ("Ampere;9.0a", None, ("8.0", "8.6+PTX", "9.0a")),
    ],
    ids=["nothing", "device", "specific", "newer than nvcc", "native", "list", "blanks", "names"],
)
def test_architectures(tmp_path: Path, wanted: str, arch: str | None, expected: tuple[str, ...]):
    gpu = arch and DeviceInfo("cuda", 0, "a gpu", arch, 1, 1, 1, 1, 1.0, 1.0, ())
    home = toolkit(tmp_path / "cuda")
    assert cuda_toolkit.choose_archs(wanted, gpu or None, f"{home}/bin/nvcc") == expected


@pytest.mark.parametrize("wanted", ["Fermi", "9", "sm_90", "9.0;;x"])
def test_a_list_that_cannot_be_read(wanted: str):
    with pytest.raises(ToolchainError, match="unknown GPU architecture"):
        cuda_toolkit.choose_archs(wanted, None, "nvcc")


def test_gencode_flags():
    assert cuda_toolkit.gencode_flags(("9.0a", "8.0+PTX", "12.0")) == (
        "-gencode=arch=compute_90a,code=sm_90a",
        "-gencode=arch=compute_80,code=sm_80",
        "-gencode=arch=compute_80,code=compute_80",
        "-gencode=arch=compute_120,code=sm_120",
    )


@pytest.mark.parametrize(
    ("body", "found", "note"),
    [("echo 1.13.0", True, "ninja 1.13.0"), ("exit 1", False, "does not run"), (None, False, "no ninja on PATH")],
    ids=["works", "broken stub", "missing"],
)
def test_ninja_is_run_not_just_found(path: Path, monkeypatch, body: str | None, found: bool, note: str):
    monkeypatch.setattr("sys.executable", str(path / "python"))
    if body:
        script(path / "ninja", body)
    folder, line = toolchain.find_ninja()
    assert (folder == str(path)) is found
    assert note in line


def test_the_host_compiler_is_asked_in_english(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    script(path / "g++", f'echo "$LC_ALL" >> {tmp_path}/language; ' + CXX.format(body=WRITES_OUTPUT))
    host_compiler.find_host_compiler("", "native", (str(path),), True)
    assert set((tmp_path / "language").read_text().split()) == {"C"}
