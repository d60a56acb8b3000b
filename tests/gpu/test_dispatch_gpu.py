"""Operators on a GPU: the tensors' device, that device's current stream, graph capture, gradients, errors by name."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.support import native
from torch_forge.dispatch.call import ForgedFunction
from torch_forge.dispatch.registry import OpHandle
from torch_forge.records.kernels import Binding

pytestmark = [pytest.mark.gpu, pytest.mark.nvcc, pytest.mark.compiler]

LONG_CYCLES = 200_000_000
"""Of a delay kernel: about 0.1 s, long enough for a launch on the wrong stream to run first."""


def both(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return a + b, a * b


@pytest.fixture(scope="module")
def add_mul(tmp_path_factory: pytest.TempPathFactory) -> OpHandle:
    major, minor = torch.cuda.get_device_capability()
    folder = tmp_path_factory.mktemp("ops")
    return native.load(folder, "add_mul", "ab01", (2, 2), native.CUDA_ADD_MUL, arch=f"sm_{major}{minor}")


def case(a: Tensor, b: Tensor, **options: int) -> Binding:
    return native.binding([a, b], [a, b], [a.numel()], workspace_bytes=4 * a.numel(), **options)


def inputs(n: int, device: str = "cuda") -> tuple[Tensor, Tensor]:
    return torch.randn(n, device=device), torch.randn(n, device=device)


def test_values_and_opcheck(add_mul: OpHandle) -> None:
    a, b = inputs(1001)
    add_mul.bind(case(a, b))
    assert all(map(torch.equal, add_mul.op(a, b), both(a, b)))
    assert set(torch.library.opcheck(add_mul.op, (a, b)).values()) == {"SUCCESS"}


@pytest.mark.parametrize("offset", range(4))
def test_misaligned_pointers_use_the_fallback_config(add_mul: OpHandle, offset: int) -> None:
    a, b = torch.randn(1100, device="cuda")[offset : offset + 1000], torch.randn(1000, device="cuda")
    add_mul.bind(case(a, b, config=1, align_bytes=16))
    assert all(map(torch.equal, add_mul.op(a, b), both(a, b)))


def test_launches_on_the_current_stream(add_mul: OpHandle) -> None:
    a, b = inputs(4096)
    add_mul.bind(case(a, b))
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(LONG_CYCLES)
        a.fill_(3.0)
        total, product = add_mul.op(a, b)
        consumed = total + product
    side.synchronize()
    assert torch.equal(consumed, (a + b) + a * b)
    assert a[0] == 3.0


def test_capture_and_replay_follow_new_inputs(add_mul: OpHandle) -> None:
    a, b = inputs(2048)
    add_mul.bind(case(a, b))
    forged = ForgedFunction(both, name="both")
    forged.add((a, b), {}, add_mul.op)
    forged(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total, product = forged(a, b)
    for _ in range(3):
        a.normal_()
        b.normal_()
        graph.replay()
        assert torch.equal(total, a + b)
        assert torch.equal(product, a * b)


def test_every_device_whatever_is_current(add_mul: OpHandle) -> None:
    for index in reversed(range(torch.cuda.device_count())):
        a, b = inputs(515, f"cuda:{index}")
        add_mul.bind(case(a, b))
        total, product = add_mul.op(a, b)
        assert total.device == a.device
        assert torch.equal(total, a + b)
        assert torch.equal(product, a * b)
        assert torch.cuda.current_device() == 0


def test_a_binding_may_be_for_one_device_only(add_mul: OpHandle) -> None:
    a, b = inputs(517)
    binding_id = add_mul.bind(case(a, b), device_index=torch.cuda.device_count())
    with pytest.raises(RuntimeError, match="no certified binding"):
        add_mul.op(a, b)
    add_mul.unbind(binding_id)
    add_mul.bind(case(a, b), device_index=0)
    assert all(map(torch.equal, add_mul.op(a, b), both(a, b)))


def test_mixed_devices_are_an_error(add_mul: OpHandle) -> None:
    a, b = inputs(519)
    add_mul.bind(case(a, b))
    with pytest.raises(RuntimeError, match="same device"):
        add_mul.op(a, b.cpu())


def test_a_cuda_error_is_named_and_does_not_stick(add_mul: OpHandle) -> None:
    a, b = inputs(521)
    binding_id = add_mul.bind(case(a, b, config=2))
    with pytest.raises(RuntimeError, match="invalid argument"):
        add_mul.op(a, b)
    add_mul.unbind(binding_id)
    add_mul.bind(case(a, b))
    assert all(map(torch.equal, add_mul.op(a, b), both(a, b)))
    torch.cuda.synchronize()


def test_gradients_and_fallback_on_the_cpu(add_mul: OpHandle) -> None:
    a, b = (t.requires_grad_() for t in inputs(523))
    add_mul.bind(case(a, b))
    forged = ForgedFunction(both, name="both")
    forged.add((a, b), {}, add_mul.op)
    before = add_mul.calls
    actual = torch.autograd.grad([o.sum() for o in forged(a, b)], [a, b])
    expected = torch.autograd.grad([o.sum() for o in both(a, b)], [a, b])
    assert all(map(torch.equal, actual, expected))
    assert add_mul.calls == before + 1
    a, b = inputs(523, "cpu")
    assert all(map(torch.equal, forged(a, b), both(a, b)))
    assert add_mul.calls == before + 1


def test_compiles_whole(add_mul: OpHandle) -> None:
    torch._dynamo.reset()
    a, b = inputs(525)
    add_mul.bind(case(a, b))
    compiled = torch.compile(lambda x, y: add_mul.op(x * 2, y)[0] + 1, fullgraph=True)
    assert torch.allclose(compiled(a, b), a * 2 + b + 1)
