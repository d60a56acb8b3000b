"""Real operators on the CPU: glue and hand-written kernels built with g++, loaded, bound, called every way torch can."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from tests.support import native
from torch_forge.dispatch.call import ForgedFunction
from torch_forge.dispatch.glue import glue_source
from torch_forge.dispatch.overrides import AtenOverride
from torch_forge.dispatch.registry import BindError, OpHandle, Registry, load_op
from torch_forge.errors import UsageError

pytestmark = pytest.mark.compiler


@dataclass(frozen=True)
class Ops:
    folder: Path
    relu: OpHandle
    add_mul: OpHandle
    copy: OpHandle
    gather: OpHandle


@pytest.fixture(scope="module")
def ops(tmp_path_factory: pytest.TempPathFactory) -> Ops:
    folder = tmp_path_factory.mktemp("ops")
    return Ops(
        folder,
        native.load(folder, "relu", "aa01", (1, 1), native.RELU),
        native.load(folder, "add_mul", "aa02", (2, 2), native.ADD_MUL),
        native.load(folder, "copy", "aa03", (1, 1), native.STRIDED_COPY),
        native.load(folder, "gather", "aa04", (2, 1), native.GATHER),
    )


def bind_relu(ops: Ops, x: Tensor, **options: int) -> int:
    return ops.relu.bind(native.binding([x], [x.contiguous()], [x.numel()], **options))


def add_mul_case(ops: Ops, n: int) -> tuple[Tensor, Tensor]:
    a, b = torch.randn(n, dtype=torch.float64), torch.randn(n, dtype=torch.float64)
    ops.add_mul.bind(native.binding([a, b], [a, b], [n], workspace_bytes=8 * n))
    return a, b


def test_one_and_two_outputs_and_a_workspace(ops: Ops) -> None:
    x = torch.randn(4, 5)
    bind_relu(ops, x)
    before = ops.relu.calls
    assert torch.equal(ops.relu.op(x), x.relu())
    assert ops.relu.calls == before + 1
    a, b = add_mul_case(ops, 33)
    total, product = ops.add_mul.op(a, b)
    assert torch.equal(total, a + b)
    assert torch.equal(product, a * b)


LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "contiguous": lambda: torch.randn(4, 6),
    "transposed": lambda: torch.randn(6, 4).t(),
    "every-second": lambda: torch.randn(4, 12)[:, ::2],
    "row-stride": lambda: torch.randn(4, 9)[:, 1:7],
    "expanded": lambda: torch.randn(4, 1).expand(4, 6),
}


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS)
def test_each_layout_is_its_own_case_and_outputs_have_the_bound_layout(ops: Ops, make: Callable[[], Tensor]) -> None:
    x = make()
    padded = torch.empty_strided((4, 6), (8, 1))
    with pytest.raises(RuntimeError, match="no certified binding"):
        ops.copy.op(x)
    binding_id = ops.copy.bind(native.binding([x], [padded]))
    out = ops.copy.op(x)
    assert torch.equal(out, x)
    assert out.stride() == (8, 1)
    with FakeTensorMode() as mode:
        fake = ops.copy.op(mode.from_tensor(x))
    assert (fake.shape, fake.stride(), fake.dtype, fake.device) == (out.shape, out.stride(), out.dtype, out.device)
    ops.copy.unbind(binding_id)
    with pytest.raises(RuntimeError, match="no certified binding"):
        ops.copy.op(x)


def test_strides_of_single_element_dimensions_do_not_decide(ops: Ops) -> None:
    ops.copy.bind(native.binding([torch.randn(1, 6)], [torch.randn(1, 6)]))
    odd = torch.randn(9).as_strided((1, 6), (777, 1))
    assert torch.equal(ops.copy.op(odd), odd)
    with FakeTensorMode() as mode:
        assert ops.copy.op(mode.from_tensor(odd)).stride() == (6, 1)


@pytest.mark.parametrize("offset", range(5))
def test_misaligned_pointers_use_the_fallback_config(ops: Ops, offset: int) -> None:
    x = torch.randn(64)[offset : offset + 16]
    bind_relu(ops, x, config=1, align_bytes=16)  # config 1 refuses what is not aligned
    assert torch.equal(ops.relu.op(x), x.relu())


def test_a_refusing_kernel_and_a_wrong_config_are_errors(ops: Ops) -> None:
    for config, message in ((1, "refused"), (7, "no such configuration")):
        x = torch.randn(65)[1:52]
        binding_id = bind_relu(ops, x, config=config)
        with pytest.raises(RuntimeError, match=message):
            ops.relu.op(x)
        ops.relu.unbind(binding_id)


@pytest.mark.parametrize("shape", [(0,), (3, 0), ()], ids=str)
def test_empty_and_scalar_tensors(ops: Ops, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    bind_relu(ops, x)
    assert torch.equal(ops.relu.op(x), x.relu())


@pytest.mark.parametrize(
    "change",
    [lambda x: x.double(), lambda x: x.bfloat16(), lambda x: x.to(torch.complex64), lambda x: x[:5], lambda x: x.view(2, 5)],
    ids=["double", "bfloat16", "complex", "shorter", "other-rank"],
)
def test_unbound_inputs_are_a_clear_error_real_and_fake(ops: Ops, change: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(10)
    bind_relu(ops, x)
    other = change(x)
    with pytest.raises(RuntimeError, match="no certified binding for these inputs"):
        ops.relu.op(other)
    with FakeTensorMode() as mode, pytest.raises(RuntimeError, match="no certified binding for these inputs"):
        ops.relu.op(mode.from_tensor(other))


def test_a_bad_index_is_an_index_error(ops: Ops) -> None:
    table, index = torch.randn(5), torch.tensor([4, 0, 2])
    ops.gather.bind(native.binding([table, index], [torch.empty(3)], [5, 3]))
    assert torch.equal(ops.gather.op(table, index), table[index])
    with pytest.raises(IndexError, match="out of range"):
        ops.gather.op(table, index + 1)


def test_an_input_is_not_copied_on_write(ops: Ops) -> None:
    x = torch.randn(21)
    bind_relu(ops, x)
    lazy = torch._lazy_clone(x)
    ops.relu.op(lazy)
    assert torch._C._is_cow_tensor(lazy)


def test_opcheck(ops: Ops) -> None:
    x = torch.randn(3, 4)
    bind_relu(ops, x)
    a, b = add_mul_case(ops, 12)
    strided = torch.randn(6, 4).t()
    ops.copy.bind(native.binding([strided], [torch.empty_strided((4, 6), (8, 1))]))
    table, index = torch.randn(7), torch.tensor([6, 0])
    ops.gather.bind(native.binding([table, index], [torch.empty(2)], [7, 2]))
    for handle, args in ((ops.relu, (x,)), (ops.add_mul, (a, b)), (ops.copy, (strided,)), (ops.gather, (table, index))):
        assert set(torch.library.opcheck(handle.op, args).values()) == {"SUCCESS"}


@pytest.mark.parametrize("dynamic", [False, True, None], ids=["static", "dynamic", "automatic"])
def test_an_operator_compiles_whole(ops: Ops, dynamic: bool | None) -> None:
    torch._dynamo.reset()
    x = torch.randn(7, 3)
    bind_relu(ops, x)
    compiled = torch.compile(lambda t: ops.relu.op(t * 2) + 1, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    assert torch.equal(compiled(x), (x * 2).relu() + 1)


def test_kernels_share_an_operator_and_the_newest_binding_wins(ops: Ops) -> None:
    doubling = native.build(native.RELU.replace("x[i] < 0 ? 0 : x[i]", "2 * x[i]"), ops.folder / "doubling.so")
    glue = ops.folder / "relu_cpu_glue.so"
    again = load_op("relu", "aa01", 1, 1, "cpu", glue, doubling)
    assert again.op is ops.relu.op
    assert again.kernel != ops.relu.kernel
    assert load_op("relu", "aa01", 1, 1, "cpu", glue, doubling).kernel == again.kernel
    x, y = torch.randn(13), torch.randn(14)
    bind_relu(ops, x)
    other_id = again.bind(native.binding([y], [y], [14]))
    newest = again.bind(native.binding([x], [x], [13]))
    assert torch.equal(again.op(x), 2 * x)
    assert torch.equal(again.op(y), 2 * y)
    again.unbind(newest)
    again.unbind(newest)
    assert torch.equal(again.op(x), x.relu())
    again.unbind(other_id)


def test_a_problem_known_by_another_name_shares_the_operator(ops: Ops) -> None:
    alias = load_op("other_name", "aa01", 1, 1, "cpu", ops.folder / "relu_cpu_glue.so", ops.folder / "relu_cpu_kernel.so")
    assert alias.op is ops.relu.op
    x = torch.randn(17)
    alias.bind(native.binding([x], [x], [17]))
    assert torch.equal(ops.relu.op(x), x.relu())


def test_misuse_is_a_bind_error(ops: Ops) -> None:
    with pytest.raises(BindError, match="another operator"):
        load_op("relu", "bbbb", 1, 1, "cpu", ops.folder / "relu_cpu_glue.so", ops.folder / "relu_cpu_kernel.so")
    x = torch.randn(3)
    with pytest.raises(BindError, match="takes 1 -> 1"):
        ops.relu.bind(native.binding([x, x], [x], [3]))
    with pytest.raises(BindError, match="refused"):
        ops.relu.bind(native.binding([x], [x], [3], align_bytes=12))


def test_calls_are_safe_while_bindings_come_and_go(ops: Ops) -> None:
    x = torch.randn(512)
    bind_relu(ops, x)
    expected, wrong = x.relu(), []
    stop = threading.Event()

    def call() -> None:
        while not stop.is_set():
            if not torch.equal(ops.relu.op(x), expected):
                wrong.append(1)

    workers = [threading.Thread(target=call) for _ in range(2)]
    for worker in workers:
        worker.start()
    for n in range(600):
        ids = [bind_relu(ops, x), bind_relu(ops, torch.empty(1000 + n))]
        for binding_id in ids:
            ops.relu.unbind(binding_id)
    stop.set()
    for worker in workers:
        worker.join()
    assert wrong == []


def test_registry_counts_users(ops: Ops) -> None:
    registry, x = Registry(), torch.randn(23)
    binding = native.binding([x], [x], [23])
    first = registry.install("w", "cpu", ops.relu, binding)
    assert registry.install("w", "cpu", ops.relu, binding) is first
    assert registry.lookup("w", "cpu") is first
    assert registry.lookup("w", "other") is None
    registry.revert("w", "cpu")
    assert torch.equal(ops.relu.op(x), x.relu())
    registry.revert("w", "cpu")
    assert registry.lookup("w", "cpu") is None
    with pytest.raises(RuntimeError, match="no certified binding"):
        ops.relu.op(x)
    with pytest.raises(UsageError):
        registry.revert("w", "cpu")


def test_registry_replaces_without_a_gap(ops: Ops) -> None:
    registry, x = Registry(), torch.randn(24)
    old = registry.install("w", "cpu", ops.relu, native.binding([x], [x], [24]))
    new = registry.install("w", "cpu", ops.relu, native.binding([x], [x], [24], config=1, align_bytes=4096))
    assert new.binding_id != old.binding_id
    assert torch.equal(ops.relu.op(x), x.relu())
    registry.revert("w", "cpu")
    registry.revert("w", "cpu")
    assert len(registry) == 0


def test_a_forged_function_over_a_real_operator(ops: Ops) -> None:
    a, b = add_mul_case(ops, 40)

    def both(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a + b, a * b

    forged = ForgedFunction(both, name="both")
    forged.add((a, b), {}, ops.add_mul.op)
    before = ops.add_mul.calls
    for args in ((a, b), (a.clone(), b), tuple(t.clone().requires_grad_() for t in (a, b))):
        assert all(map(torch.equal, forged(*args), both(*args)))
    assert ops.add_mul.calls == before + 3
    x, y = (t.clone().requires_grad_() for t in (a, b))
    assert torch.autograd.gradcheck(forged, (x, y))
    assert torch.autograd.gradgradcheck(forged, (x, y))


def test_an_override_over_a_real_operator(ops: Ops) -> None:
    x = torch.randn(31)
    bind_relu(ops, x)
    before = ops.relu.calls
    with AtenOverride("aten::relu", "CPU") as override:
        override.add((x,), {}, ops.relu.op)
        assert torch.equal(torch.relu(x), torch.clamp(x, min=0))
        assert ops.relu.calls == before + 1
        torch.relu(x[:30])
    torch.relu(x)
    assert ops.relu.calls == before + 1


def test_cuda_glue_builds_without_a_cuda_toolkit(ops: Ops) -> None:
    library = native.build(glue_source("add_mul", "aa09", 2, 2, "cuda"), ops.folder / "cuda_glue.so")
    with pytest.raises(BindError, match="another operator"):
        load_op("add_mul", "aa09", 2, 2, "cpu", library, ops.folder / "add_mul_cpu_kernel.so")
