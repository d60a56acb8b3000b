"""The CUDA templates through nvcc, without a GPU: every variant compiles, nothing spills, vectors become vector accesses."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from tests.support import programs
from tests.support.launching import INCLUDE
from torch_forge.generation.templates.engine import candidates

pytestmark = pytest.mark.nvcc(direct=True)

ARCH = "sm_90"
DEVICE = programs.cuda_device()
CASES = {
    "softmax": lambda: programs.softmax(4096, 4096, torch.bfloat16),
    "short rows": lambda: programs.softmax(65536, 64, torch.float16),
    "two results": lambda: programs.add_layer_norm(4096, 1024),
    "scan": lambda: programs.cumsum_normalised(4096, 1000),
    "positions": lambda: programs.argmax(64, 4096),
    "gathered rows": lambda: programs.embed_norm(64, 1024),
    "flat": lambda: programs.swiglu(100_000),
    "two spaces": lambda: programs.two_parts(700, 33),
    "concatenation": lambda: programs.concat(64, 64, 64),
    "across the input": lambda: programs.transposed(64, 64),
}


def nvcc() -> str:
    home = Path("/usr/local/cuda/bin/nvcc")
    found = shutil.which("nvcc") or (str(home) if home.exists() else None)
    if found is None:
        pytest.skip("nvcc is not on PATH")
    return found


def cubin(source: str, folder: Path) -> tuple[Path, str]:
    """The compiled kernel and ptxas's report."""
    file = folder / "kernel.cu"
    file.write_text(source)
    target = file.with_suffix(".cubin")
    command = [
        nvcc(),
        "-std=c++17",
        "-O3",
        f"-arch={ARCH}",
        "-cubin",
        "-Xptxas",
        "-v",
        f"-I{INCLUDE}",
        str(file),
        "-o",
        str(target),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stderr[:4000]}\n{source}"
    return target, done.stderr


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_compiles_without_warnings_or_spills(make, tmp_path):
    case = make()
    for candidate in candidates(case.problem, case.lowered, DEVICE):
        _, report = cubin(candidate.source, tmp_path)
        assert "warning" not in report
        assert len(re.findall(r"Used \d+ registers", report)) == len({tuple(c.params.items()) for c in candidate.configs})
        assert sum(map(int, re.findall(r"(\d+) bytes spill stores", report))) == 0


def test_the_host_side_compiles_too(tmp_path):
    case = programs.rms_norm(64, 4096)
    file = tmp_path / "kernel.cu"
    file.write_text(candidates(case.problem, case.lowered, DEVICE)[0].source)
    command = [nvcc(), "-std=c++17", f"-arch={ARCH}", "-c", f"-I{INCLUDE}", str(file), "-o", str(tmp_path / "kernel.o")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("cuobjdump") is None, reason="needs cuobjdump")
@pytest.mark.parametrize("make", [CASES["softmax"], CASES["flat"]], ids=["row", "pointwise"])
def test_vectors_are_moved_in_sixteen_bytes(make, tmp_path):
    case = make()
    target, _ = cubin(candidates(case.problem, case.lowered, DEVICE)[0].source, tmp_path)
    listing = subprocess.run(["cuobjdump", "-sass", str(target)], capture_output=True, text=True, check=True).stdout
    vector_kernels = [
        part
        for part in listing.split("Function :")[1:]
        if "ILi" in part and not re.search(r"Li\d+ELi1E", part.split("\n")[0])
    ]
    assert vector_kernels
    for kernel in vector_kernels:
        assert "LDG.E.128" in kernel
        assert "STG.E.128" in kernel
