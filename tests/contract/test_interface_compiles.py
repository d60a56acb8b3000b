"""The file to start from compiles as it stands, for every element type and backend, and is right where it says so."""

from __future__ import annotations

import math
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.test_interface_text import EVERY_DTYPE, EXPRESSION, INCLUDE, PROBLEMS
from torch_forge.generation.naive_source import example_source
from torch_forge.records.problem import Problem


@pytest.mark.compiler
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.name)
def test_the_cpu_example_compiles(problem: Problem, tmp_path: Path):
    file = tmp_path / "kernel.cpp"
    file.write_text(example_source(problem, "cpu"))
    warnings = ["-Wall", "-Wextra", "-Wno-unused-function", "-Werror"]
    command = ["g++", "-std=c++17", "-fsyntax-only", *warnings, f"-I{INCLUDE}", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.compiler
def test_an_elementwise_example_is_right(tmp_path: Path):
    (tmp_path / "kernel.cpp").write_text(example_source(EXPRESSION, "cpu"))
    main = """
#include "kernel.cpp"
#include <cstdio>
int main() {
  float a[24], b[24], y[24], z[24];
  for (int i = 0; i < 24; ++i) { a[i] = i - 12; b[i] = 0.25f * i; }
  ForgeTensor in[2] = {{a, 0, 0, 2, 1}, {b, 0, 0, 2, 1}}, out[2] = {{y, 0, 0, 2, 1}, {z, 0, 0, 2, 1}};
  if (forge_launch(in, out, 0, 1, 1, 0, 0) != FORGE_BAD_CONFIG) return 1;
  int status = forge_launch(in, out, 0, 0, 1, 0, 0);
  for (int i = 0; i < 24; ++i) std::printf("%.9g %.9g\\n", y[i], z[i]);
  return status;
}
"""
    (tmp_path / "main.cpp").write_text(main)
    program = tmp_path / "main"
    subprocess.run(["g++", f"-I{INCLUDE}", str(tmp_path / "main.cpp"), "-o", str(program)], check=True, timeout=120)
    printed = subprocess.run([str(program)], capture_output=True, text=True, check=True, timeout=60).stdout
    rows = [[float(word) for word in line.split()] for line in printed.splitlines()]
    a, b = [i - 12 for i in range(24)], [0.25 * i for i in range(24)]
    expected = [[-1 / (1 + math.exp(-(x * y + 0.5))), x] for x, y in zip(a, b, strict=True)]
    assert rows == [pytest.approx(row, rel=1e-6) for row in expected]


@pytest.mark.nvcc(direct=True)
@pytest.mark.parametrize("problem", [EVERY_DTYPE, EXPRESSION], ids=lambda p: p.name)
def test_the_cuda_example_compiles(problem: Problem, tmp_path: Path):
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    file = tmp_path / "kernel.cu"
    file.write_text(example_source(problem, "cuda"))
    command = [nvcc, "-std=c++17", "-arch=sm_90", "-cubin", f"-I{INCLUDE}", str(file), "-o", str(tmp_path / "kernel.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
