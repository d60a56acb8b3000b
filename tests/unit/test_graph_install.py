"""Regions replaced in a compiled model: the same numbers, the same module, and a way back."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.support import fake_ops
from tests.support.fake_ops import reference_operator
from torch_forge.dispatch.graph import ModelInstall, captured_graphs, substitute
from torch_forge.graphs.capture import spec_of, trace_specs
from torch_forge.graphs.decompose import before_partition
from torch_forge.graphs.partition import regions


class Block(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> dict[str, torch.Tensor]:
        y = self.second(self.first(x))
        return {"y": y * scale, "p": y.softmax(-1)}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    fake_ops.CALLS.clear()


def installed(model: nn.Module, x: torch.Tensor) -> ModelInstall:
    install = ModelInstall(model, reference_operator)
    install.admit((x,), {})
    install.install()
    return install


def test_regions_of_a_model() -> None:
    model, x = Net().eval(), torch.randn(4, 16)
    with torch.no_grad():
        (graph,) = captured_graphs(lambda m: m(x), model)
    found, _ = regions(graph)
    names = [r.problem.name for r in found]
    assert names == ["layer_norm", "gelu", "add_layer_norm", "gelu", "add_mul_softmax"]
    assert found[1].problem.workload == found[3].problem.workload


def test_a_region_that_reads_another_leaves_nothing_behind() -> None:
    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x.float(), target)

    x, target = torch.randn(6, 9).bfloat16(), torch.randint(0, 9, (6,))
    gm = trace_specs(loss, [spec_of(x), spec_of(target)], decompositions=before_partition())
    found, _ = regions(gm)
    assert len(found) == 2
    assert set(found[0].outputs) & set(found[1].inputs)
    forged = substitute(gm, [(r, reference_operator(r)) for r in found])
    calls = [n for n in forged.graph.nodes if n.op == "call_function"]
    assert [str(n.target).split(".")[0] for n in calls] == ["torch_forge_tests"] * 2
    torch.testing.assert_close(forged(x, target), loss(x, target), rtol=1e-6, atol=0)


def test_installed_model_computes_the_same_and_reverts() -> None:
    model, x = Net().eval(), torch.randn(4, 16)
    with torch.no_grad():
        want = model(x)
        install = installed(model, x)
        got = model(x)
        assert len(fake_ops.CALLS) == 5
        torch.testing.assert_close(got, want, rtol=0, atol=0)
        install.revert()
        model(x)
    assert len(fake_ops.CALLS) == 5
    assert model._compiled_call_impl is None


def test_unknown_inputs_run_eager_and_are_noted() -> None:
    model, x, longer = Net().eval(), torch.randn(4, 16), torch.randn(7, 16)
    with torch.no_grad():
        install = installed(model, x)
        model(x)
        engaged = len(fake_ops.CALLS)
        torch.testing.assert_close(model(longer)["y"], model._call_impl(longer)["y"], rtol=0, atol=0)
    assert len(fake_ops.CALLS) == engaged
    assert list(install.seen.values()) == [1]


def test_gradients_are_eagers() -> None:
    model, x = Net(), torch.randn(4, 16)
    plain = copy.deepcopy(model)
    installed(model, x)
    model(x)["y"].square().sum().backward()
    plain(x)["y"].square().sum().backward()
    assert fake_ops.CALLS
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_state_type_hooks_copies_and_new_weights() -> None:
    model, x = Net().eval(), torch.randn(4, 16)
    keys, kind = list(model.state_dict()), type(model)
    fired: list[int] = []
    model.register_forward_hook(lambda *_: fired.append(1))
    installed(model, x)
    with torch.no_grad():
        model(x)
        assert fired == [1]
        assert (list(model.state_dict()), type(model)) == (keys, kind)
        assert copy.deepcopy(model)._compiled_call_impl is None
        model._forward_hooks.clear()
        assert pickle.load(io.BytesIO(pickle.dumps(model)))._compiled_call_impl is None
        other = Net().eval()
        model.load_state_dict(other.state_dict())
        torch.testing.assert_close(model(x), other(x), rtol=0, atol=0)
        model.first.norm.weight.data.fill_(2.0)
        other.first.norm.weight.data.fill_(2.0)
        torch.testing.assert_close(model(x), other(x), rtol=0, atol=0)


def test_another_instance_is_untouched() -> None:
    model, other, x = Net().eval(), Net().eval(), torch.randn(4, 16)
    installed(model, x)
    with torch.no_grad():
        other(x)
    assert fake_ops.CALLS == []


def test_backward_graph_is_forged_too() -> None:
    x = torch.randn(4, 16, requires_grad=True)
    model = Net()
    installed(model, x)
    y = model(x)["y"].sum()
    forward = len(fake_ops.CALLS)
    y.backward()
    assert len(fake_ops.CALLS) > forward
