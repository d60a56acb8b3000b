"""Workers, devices and builds on a real GPU, beside a user's process that is using it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.worker_tasks import GPU_KERNELS
from torch_forge.compilation.build import TASKS, build
from torch_forge.machine.device import device_info
from torch_forge.machine.locks import LockError, device_lane
from torch_forge.machine.toolchain import find_toolchain
from torch_forge.machine.workers import TaskDied, TaskDone, WorkerPool
from torch_forge.records.kernels import Built, Candidate, Config, Origin
from torch_forge.settings import Settings

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    torch.ones(1 << 20, device="cuda").sum().item()  # the user's process has its context first
    with WorkerPool(preload=[TASKS], python_path=[str(ROOT / "tests" / "support")]) as shared:
        yield shared


def test_facts_and_bandwidth():
    settings = Settings.resolve()
    torch.ones(1, device="cuda")
    reserved = torch.cuda.memory_reserved()
    info = device_info("cuda", settings)
    props = torch.cuda.get_device_properties(info.index)
    assert torch.cuda.memory_reserved() == reserved
    assert (info.units, info.memory_bytes) == (props.multi_processor_count, props.total_memory)
    assert info.arch == f"sm_{props.major}{props.minor}"
    assert info.smem_bytes > 48 << 10
    assert 100 < info.copy_gb_per_s < 20_000
    assert 1e12 < info.flops_per_s < 1e15
    assert device_info("cuda:0", settings).key == info.key


def test_the_lane_is_the_physical_device():
    info = device_info("cuda", Settings.resolve())
    with device_lane(info), pytest.raises(LockError, match="cuda-"), device_lane(info, timeout_s=0.05):
        pass


@pytest.mark.parametrize("name", ["relu", "out_of_bounds"])
def test_a_kernel_runs_in_a_worker_and_leaves_the_user_alone(pool: WorkerPool, tmp_path: Path, name: str):
    toolchain = find_toolchain(Settings.resolve(), "cuda", device_info("cuda", Settings.resolve(), measure=False))
    candidate = Candidate("problem", name, "cuda", GPU_KERNELS[name], Origin.USER, "test", (Config({}, 4),))
    built = build(candidate, toolchain, pool, staging_root=tmp_path, timeout_s=120)
    assert isinstance(built, Built), getattr(built, "log", built)
    outcome = pool.run("worker_tasks:launch_on_gpu", built.library, timeout_s=60)
    if name == "relu":
        assert isinstance(outcome, TaskDone), outcome
        assert outcome.value == {"right": True}
    else:
        assert isinstance(outcome, TaskDied), outcome
        assert "illegal memory access" in outcome.exception
    assert torch.ones(8, device="cuda").sum().item() == 8
