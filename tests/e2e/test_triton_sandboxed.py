"""Triton works inside the sandbox: its compilers start, its caches go to the scratch folder, whatever the user's say."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.test_workers import ROOT, SUPPORT
from tests.gpu.published.catalogue import PUBLISHED
from torch_forge.machine.workers import TaskDone, WorkerPool
from torch_forge.validation.static.python import python_reasons

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs the triton package"),
]
KERNELS = {
    "rms_norm_triton": (
        "normalise",
        {"x": "*bf16", "weight": "*bf16", "y": "*bf16", "columns": "i32", "eps": "fp32"},
        {"BLOCK": 8192},
        16,
    ),
    "swiglu_triton": ("swiglu", {"gate": "*bf16", "up": "*bf16", "y": "*bf16", "count": "i32"}, {"BLOCK": 2048}, 8),
    "cross_entropy_triton": (
        "losses",
        {"logits": "*bf16", "target": "*i64", "loss": "*fp32", "columns": "i32"},
        {"BLOCK": 4096},
        8,
    ),
    "tf32_matmul": (
        "product",
        {"a": "*fp32", "b": "*fp32", "y": "*fp32", "M": "i32", "N": "i32", "K": "i32"},
        {"ROWS": 128, "COLUMNS": 128, "DEPTH": 32},
        8,
    ),
}
"""Function, types of its arguments, constants, warps."""


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerPool]:
    """With a driver library to link the launcher with, and with a user who has moved the caches."""
    folder, cache = tmp_path_factory.mktemp("driver"), tmp_path_factory.mktemp("cache")
    library = ["gcc", "-shared", "-x", "c", "/dev/null", "-Wl,-soname,libcuda.so.1", "-o", str(folder / "libcuda.so.1")]
    subprocess.run(library, check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_LIBCUDA_PATH", str(folder))
        patch.setenv("TRITON_CACHE_DIR", str(cache))
        # As in a parent that has imported it: it looks up the user's home only once.
        with WorkerPool(preload=["triton"], python_path=[SUPPORT, ROOT]) as shared:
            yield shared
    assert not any(cache.iterdir())


def test_every_triton_kernel_is_here():
    assert set(KERNELS) == {k.name for k in PUBLISHED.values() if k.kind == "py"}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_compiles_in_the_sandbox(pool: WorkerPool, tmp_path: Path, name: str):
    function, signature, constants, warps = KERNELS[name]
    path = tmp_path / "candidate.py"
    path.write_text(PUBLISHED[name].source)
    confine = pool.confinement(compilers=True, readable=(path,))
    assert confine is not None
    task = {"path": str(path), "kernel": function, "signature": signature, "constants": constants, "warps": warps}
    done = pool.run("triton_tasks:compile_as_candidate", task, timeout_s=240, confine=confine)
    assert isinstance(done, TaskDone), done
    assert done.value["cubin_bytes"] > 1000
    assert done.value["launcher"].startswith(".triton/cache/")
    assert "libs found in cache" in done.value["libraries"]


@pytest.mark.parametrize("name", KERNELS)
def test_a_published_kernel_passes_the_source_gate(name: str):
    assert python_reasons(PUBLISHED[name].source) == []
