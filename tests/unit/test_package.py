"""The wheel holds what the code looks for, and the data folders are found from it and from a checkout."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import torch_forge.version
from torch_forge.errors import ForgeError
from torch_forge.knowledge.locate import DATA_FOLDERS, data_dir

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ["setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "torch_forge", *DATA_FOLDERS]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel of a copy of the tree: building in place would leave build/ and egg-info behind, and race other tests."""
    source = tmp_path_factory.mktemp("source")
    for name in SHIPPED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    command = [sys.executable, "setup.py", "-q", "bdist_wheel", "-d", str(source / "dist")]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return zipfile.ZipFile(next((source / "dist").glob("*.whl")))


def files_under(folder: str) -> set[str]:
    """Paths from the root of the repository, without caches and hidden files."""
    paths = [p.relative_to(ROOT) for p in (ROOT / folder).rglob("*") if p.is_file()]
    return {str(p) for p in paths if not any(part == "__pycache__" or part.startswith(".") for part in p.parts)}


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_package(wheel: zipfile.ZipFile):
    names = set(wheel.namelist())
    expected = files_under("torch_forge") | {
        f"torch_forge/data/{name}" for folder in DATA_FOLDERS for name in files_under(folder)
    }
    assert sorted(expected - names) == []
    assert {"torch_forge/py.typed", "torch_forge/include/forge.h", "torch_forge/data/knowledge_base/README.md"} <= names
    assert not [n for n in names if n.startswith(("tests/", "scripts/", "docs/")) or "__pycache__" in n]


@pytest.mark.slow
def test_the_wheel_says_what_it_is(wheel: zipfile.ZipFile):
    folder = f"torch_forge-{torch_forge.version.__version__}.dist-info"
    metadata = wheel.read(f"{folder}/METADATA").decode()
    assert "\nName: torch-forge\n" in metadata
    assert "\nRequires-Python: >=3.10\n" in metadata
    assert "litellm" not in "".join(re.findall(r"^Requires-Dist: (?!.*extra).*$", metadata, re.MULTILINE))
    assert "torch-forge = torch_forge.cli.main:main" in wheel.read(f"{folder}/entry_points.txt").decode()


@pytest.mark.slow
@pytest.mark.parametrize("name", DATA_FOLDERS)
def test_data_is_found_from_an_unpacked_wheel(wheel: zipfile.ZipFile, name: str, tmp_path: Path):
    wheel.extractall(tmp_path)
    code = f"from torch_forge.knowledge.locate import data_dir; print(data_dir({name!r}))"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert Path(found) == tmp_path / "torch_forge" / "data" / name


@pytest.mark.parametrize("name", DATA_FOLDERS)
def test_data_is_found_from_a_checkout(name: str):
    assert data_dir(name) == ROOT / name


@pytest.mark.parametrize("name", ["knowledge_base", "scripts", "../etc"], ids=["missing", "not a data folder", "outside"])
def test_what_is_not_there_is_an_error_with_advice(name: str, tmp_path: Path):
    (tmp_path / "scripts").mkdir()
    with pytest.raises(ForgeError, match="missing from this installation"):
        data_dir(name, package=tmp_path / "torch_forge")


def test_the_data_folders_are_the_ones_that_setup_packs():
    assert f"DATA_FOLDERS = {DATA_FOLDERS!r}".replace("'", '"') in (ROOT / "setup.py").read_text()
