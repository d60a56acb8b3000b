from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.support.sessions import cpu_device
from torch_forge.profiling.observe import timed
from torch_forge.profiling.profile import profile
from torch_forge.profiling.state import preserved
from torch_forge.profiling.trace import OTHER_KERNELS
from torch_forge.profiling.workload import Call, Workload

pytestmark = pytest.mark.gpu

GPU = cpu_device(type="cuda", name="GPU", copy_gb_per_s=4000.0)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(2048, 2048), nn.LayerNorm(2048), nn.GELU(), nn.Softmax(-1)).cuda().eval()


def test_device_times_of_kernels_by_operation():
    x = torch.randn(4096, 2048, device="cuda")
    notes: list[str] = []
    with torch.no_grad():
        found = profile(model(), Call((x,)), GPU, note=notes.append)
    ops = {c.op: c for c in found.ops}
    assert notes == []
    assert ops.keys() == {"aten.addmm", "aten.native_layer_norm", "aten.gelu", "aten._softmax"}
    assert {c.module for c in found.ops} == {"Linear", "LayerNorm", "GELU", "Softmax"}
    # 64 MB at well under 10 TB/s: no kernel can take less, and none is counted with its launch gaps.
    assert all(6 < ops[op].self_us < 500 for op in ("aten.gelu", "aten._softmax", "aten.native_layer_norm"))
    assert found.total_us <= found.wall_us


def test_annotations_are_not_counted_as_kernels():
    x = torch.randn(4096, 2048, device="cuda")

    def annotated(x):
        with torch.profiler.record_function("mine"):
            return torch.nn.functional.gelu(x)

    plain = profile(torch.nn.functional.gelu, Call((x,)), GPU)
    found = profile(annotated, Call((x,)), GPU)
    assert [c.op for c in found.ops] == ["aten.gelu"]
    assert found.total_us == pytest.approx(plain.total_us, rel=0.5)


def test_kernels_outside_operations_are_shown():
    source = 'extern "C" __global__ void bump(float* x) { x[blockIdx.x * 256 + threadIdx.x] += 1; }'
    bump = torch.cuda._compile_kernel(source, "bump")
    x = torch.zeros(256 * 4096, device="cuda")

    def run(x):
        y = x * 2
        bump(grid=(4096, 1, 1), block=(256, 1, 1), args=(y,))
        return y

    ops = {c.op: c.self_us for c in profile(run, Call((x,)), GPU).ops}
    assert ops["aten.mul"] > 0
    assert 1 < ops[OTHER_KERNELS] < 100


def test_timer_by_events_agrees_with_the_profiler_on_large_operations():
    x = torch.randn(16384, 8192, device="cuda")

    def run():
        return torch.softmax(x, -1)

    run()
    traced_us = profile(lambda x: torch.softmax(x, -1), Call((x,)), GPU).total_us
    timed_us = sum(us for _, us in timed(run, torch.device("cuda", 0)))
    assert timed_us == pytest.approx(traced_us, rel=0.3)


def test_cuda_state_is_restored():
    net = nn.Sequential(nn.BatchNorm1d(64), nn.Dropout(0.5)).cuda().train()
    x = torch.ones(8, 64, device="cuda")
    before = torch.cuda.get_rng_state().tolist()
    mean = net[0].running_mean.clone()
    allocated = torch.cuda.memory_allocated()
    with preserved(net, x):
        net(x)
        x.mul_(2)
        assert torch.cuda.get_rng_state().tolist() != before
    assert torch.cuda.get_rng_state().tolist() == before
    assert torch.equal(net[0].running_mean, mean)
    assert torch.equal(x, torch.ones_like(x))
    assert torch.cuda.memory_allocated() == allocated


def test_mixed_devices_are_noted_and_the_gpu_is_primary():
    workload = Workload.of(nn.Linear(4, 4).cuda(), torch.ones(2, 4))
    assert [d.type for d in workload.devices] == ["cuda", "cpu"]
    assert "several devices" in workload.notes[0]


def test_another_profiler_is_left_alone():
    x = torch.randn(1024, 1024, device="cuda")
    notes: list[str] = []
    with torch.profiler.profile(acc_events=True) as outer:
        found = profile(torch.nn.functional.gelu, Call((x,)), GPU, note=notes.append)
    assert len(notes) == 1
    assert [c.op for c in found.ops] == ["aten.gelu"]
    assert any(e.name == "aten::gelu" for e in outer.events())
