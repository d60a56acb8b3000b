"""Small C++ kernels, right and wrong, built by plain g++ for the judge's and the clock's tests."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torch_forge.graphs.capture import graph_from_fx, trace_specs
from torch_forge.graphs.lower import lower
from torch_forge.records.kernels import Built, Candidate, Config, Origin
from torch_forge.records.problem import Policy, Problem
from torch_forge.records.program import Lowered
from torch_forge.records.tensors import TensorSpec, contiguous

INCLUDE = Path(__file__).resolve().parents[2] / "torch_forge" / "include"
HEAD = """
#include "forge.h"
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <unistd.h>
#define LAUNCH extern "C" int forge_launch(const ForgeTensor* in, const ForgeTensor* out, const int64_t* dims, \\
    int64_t config, int64_t threads, void* workspace, void* stream)
#define IN(k) ((const float*)in[k].data)
#define OUT(k) ((float*)out[k].data)
static int64_t count(const ForgeTensor& t) { int64_t n = 1; for (int k = 0; k < t.ndim; ++k) n *= t.sizes[k]; return n; }
static float bf16(float x) {
  uint32_t b; memcpy(&b, &x, 4); b = (b + 0x7FFF + ((b >> 16) & 1)) & 0xFFFF0000u; memcpy(&x, &b, 4); return x;
}
"""


def problem(
    fn: Callable[..., Any], *specs: TensorSpec, policy: Policy = Policy.EAGER_EQUIVALENT, name: str = "test"
) -> Problem:
    """The problem of a function of tensors."""
    return Problem(name, graph_from_fx(trace_specs(fn, specs)), policy)


def f32(*shape: int) -> TensorSpec:
    return contiguous(shape, "float32")


def lowered(of: Problem) -> Lowered | None:
    found = lower(of)
    return found if isinstance(found, Lowered) else None


def build(body: str, of: Problem, *, configs: int = 1, program: str | None = None) -> Built:
    """A kernel whose ``forge_launch`` has this body (or a whole source that has LAUNCH in it)."""
    source = HEAD + (body if "LAUNCH" in body else f"LAUNCH {{\n{body}\nreturn FORGE_OK;\n}}\n")
    candidate = Candidate(
        problem=of.digest,
        name=of.name,
        backend="cpu",
        source=source,
        origin=Origin.USER,
        author="test",
        configs=tuple(Config({"variant": k}, 4) for k in range(configs)),
        program=program,
    )
    library = _compiled(source)
    return Built(candidate, str(library), hashlib.sha256(library.read_bytes()).hexdigest(), 0.0, {})


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="torch_forge-test-kernels-")


@functools.cache
def _compiled(source: str) -> Path:
    stem = Path(_folder().name) / hashlib.sha256(source.encode()).hexdigest()[:12]
    stem.with_suffix(".cpp").write_text(source)
    command = [os.environ.get("CXX", "g++"), "-std=c++17", "-O2", "-fPIC", "-shared", "-w", f"-I{INCLUDE}"]
    subprocess.run([*command, str(stem.with_suffix(".cpp")), "-o", str(stem.with_suffix(".so"))], check=True)
    return stem.with_suffix(".so")


def same_specs(tensors: list[torch.Tensor]) -> list[TensorSpec]:
    return [TensorSpec(tuple(t.shape), tuple(t.stride()), str(t.dtype).removeprefix("torch.")) for t in tensors]
