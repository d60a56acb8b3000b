"""CUDA inside the sandbox: started before the last layers, used behind them, and ended with all that it holds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.contract.test_workers import ROOT, SUPPORT
from tests.support.worker_tasks import GPU_KERNELS
from torch_forge.compilation.build import TASKS, build
from torch_forge.machine.device import device_info
from torch_forge.machine.toolchain import find_toolchain
from torch_forge.machine.workers import TaskDied, TaskDone, TaskExpired, WorkerPool
from torch_forge.records.kernels import Built, Candidate, Config, Origin
from torch_forge.records.sandbox import MINIMUM, Confinement
from torch_forge.settings import Settings

pytestmark = pytest.mark.gpu
WORKED = "worked"


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    torch.ones(1 << 20, device="cuda").sum().item()  # the user's process has its context first
    with WorkerPool(preload=[TASKS], python_path=[SUPPORT, ROOT]) as shared:
        yield shared


def confined(pool: WorkerPool, *readable: Path) -> Confinement:
    confinement = pool.confinement(cuda=True, readable=readable)
    assert confinement is not None
    return confinement


def test_what_this_machine_has(pool: WorkerPool):
    """Fails where the figures of docs/trust.md could not have been measured."""
    report = pool.sandbox_report()
    assert set(MINIMUM) <= set(report.active), report.missing


def test_torch_works_behind_all_layers(pool: WorkerPool, tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_text("sk-123")
    done = pool.run("sandbox_tasks:work_on_gpu", str(secret), timeout_s=120, confine=confined(pool))
    assert isinstance(done, TaskDone), done
    assert done.value["right"]
    assert WORKED not in done.value["refused"].values()
    assert done.value["threads"] > 1  # CUDA's own, which were there before


@pytest.mark.parametrize("name", ["relu", "out_of_bounds"])
def test_a_kernel_in_the_sandbox(pool: WorkerPool, tmp_path: Path, name: str):
    toolchain = find_toolchain(Settings.resolve(), "cuda", device_info("cuda", Settings.resolve(), measure=False))
    candidate = Candidate("problem", name, "cuda", GPU_KERNELS[name], Origin.USER, "test", (Config({}, 4),))
    built = build(candidate, toolchain, pool, staging_root=tmp_path, timeout_s=120)
    assert isinstance(built, Built), getattr(built, "log", built)
    confine = confined(pool, Path(built.library).parent)
    outcome = pool.run("worker_tasks:launch_on_gpu", built.library, timeout_s=120, confine=confine)
    if name == "relu":
        assert isinstance(outcome, TaskDone), outcome
        assert outcome.value == {"right": True}
    else:
        assert isinstance(outcome, TaskDied), outcome
        assert "illegal memory access" in outcome.exception
    assert torch.ones(8, device="cuda").sum().item() == 8


def test_the_limit_gives_the_memory_back(pool: WorkerPool, tmp_path: Path):
    before = torch.cuda.mem_get_info()[0]
    expired = pool.run("sandbox_tasks:hang_on_gpu", None, timeout_s=20, scratch=tmp_path, confine=confined(pool))
    assert expired == TaskExpired(20, "")
    assert (tmp_path / "pid").exists()
    deadline = time.monotonic() + 30
    while torch.cuda.mem_get_info()[0] < before - (64 << 20):
        assert time.monotonic() < deadline
        time.sleep(0.2)
