"""The CUDA tricks compile where there is no GPU: all in one file, each in a namespace of its own, which is much quicker."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.launching import INCLUDE
from tests.zoo.catalogue import CONTROLS, TRICKS
from tests.zoo.trick import Trick

SOURCES = [t for t in (*TRICKS.values(), *CONTROLS.values()) if t.kind == "cu"]


def apart(trick: Trick) -> str:
    """The source without its includes, with names that no other has."""
    body = re.sub(r"^#include.*$", "", trick.source, flags=re.MULTILINE)
    return f"namespace {trick.name} {{\n{body.replace('forge_launch', f'{trick.name}_launch')}}}\n"


@pytest.mark.nvcc(direct=True)
def test_cuda_tricks_compile(tmp_path: Path):
    includes = dict.fromkeys(line for t in SOURCES for line in re.findall(r"^#include.*$", t.source, flags=re.MULTILINE))
    file = tmp_path / "all.cu"
    file.write_text("\n".join([*includes, *map(apart, SOURCES)]))
    command = ["nvcc", "-std=c++17", "-arch=sm_90", "-c", f"-I{INCLUDE}", str(file), "-o", str(tmp_path / "all.o")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(SOURCES) >= 15
