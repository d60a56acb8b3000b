from __future__ import annotations

import collections
import functools
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.tiny_models import Block, DictNet, Output
from torch_forge.errors import UsageError
from torch_forge.profiling.holdings import holdings_of, tensors_of
from torch_forge.profiling.workload import Call, Workload

X = torch.ones(2, 3)


class Pair(NamedTuple):
    a: torch.Tensor
    b: torch.Tensor


@pytest.mark.parametrize(
    ("sample", "args", "kwargs"),
    [
        (X, (X,), {}),
        ((X, 3), (X, 3), {}),
        ([X], (X,), {}),
        ((), (), {}),
        ({"x": X}, (), {"x": X}),
        (({"x": X},), ({"x": X},), {}),
        (collections.UserDict(x=X), (), {"x": X}),
        (Pair(X, X), (Pair(X, X),), {}),
        (Call((X,), {"n": 1}), (X,), {"n": 1}),
    ],
    ids=["tensor", "tuple", "list", "no arguments", "dict", "dict in a tuple", "mapping", "namedtuple", "call"],
)
def test_sample_becomes_a_call(sample, args, kwargs):
    call = Call.of(sample)
    assert repr((call.args, dict(call.kwargs))) == repr((args, kwargs))


@pytest.mark.parametrize(
    ("sample", "advice"),
    [
        (None, "one input"),
        (np.ones(3), "torch.as_tensor"),
        (torch.utils.data.DataLoader([1]), "next(iter(loader))"),
        (torch.utils.data.TensorDataset(X), "one batch"),
        (iter([X]), "next(sample)"),
        ("some text", "Tokenise"),
        (nn.Linear(2, 2), "model comes first"),
        ((8, 128), "torch.randn(shape"),
        (X.shape, "torch.randn(shape"),
        (3.0, "(sample,)"),
        ({1: X}, "(sample,)"),
    ],
    ids=["none", "numpy", "loader", "dataset", "iterator", "text", "model", "ints", "size", "float", "int keys"],
)
def test_wrong_sample_says_what_to_pass(sample, advice):
    with pytest.raises(UsageError) as error:
        Call.of(sample)
    assert advice in error.value.advice


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize(
    ("target", "sample", "message"),
    [
        (lambda: Block, X, "is a class"),
        (lambda: 3, X, "cannot be called"),
        (DictNet, {"ids": X, "musk": X}, "unexpected keyword argument 'musk'"),
        (DictNet, (X, X, X), "too many positional"),
        (lambda: nn.Linear(3, 3, device="meta"), X, "without data"),
        (lambda: nn.LazyLinear(3), X, "lazy"),
    ],
    ids=["class", "not callable", "wrong keyword", "too many", "meta", "lazy"],
)
def test_wrong_model_is_refused_before_it_runs(target, sample, message):
    with pytest.raises(UsageError, match=message):
        Workload.of(target(), sample)


def test_dict_for_a_model_with_one_dict_argument_names_the_way_out():
    with pytest.raises(UsageError) as error:
        Workload.of(lambda batch: batch["x"], {"x": X})
    assert "(sample,)" in error.value.advice


NET = Block()


COMPILED = torch.compile(NET, backend="eager")


class Wrapper:
    def __init__(self, model: nn.Module) -> None:
        self.inner = {"models": [model]}

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner["models"][0](x)


def closure(model: nn.Module):
    def call(x):
        return model(x)

    return call


def names_a_global(x):
    return NET(x)


@pytest.mark.parametrize(
    "target",
    [NET, NET.forward, closure(NET), names_a_global, functools.partial(closure(NET)), Wrapper(NET), COMPILED],
    ids=["module", "bound method", "closure", "global", "partial", "object", "compiled"],
)
def test_the_model_is_found_in_what_calls_it(target):
    assert NET in set(holdings_of(target).submodules)


def test_holdings_count_shared_tensors_once():
    shared = nn.Linear(2, 2)
    both = nn.Sequential(shared, shared)
    assert len(list(holdings_of([both, shared]).parameters)) == 2


def test_cycles_end():
    loop = SimpleNamespace(x=X)
    loop.self = [loop]
    assert [id(t) for t in tensors_of(loop)] == [id(X)]


def test_tensors_of_nested_outputs_come_in_a_fixed_order():
    a, b, c = (torch.full((1,), float(i)) for i in range(3))
    output = {"z": Output(a, (b,)), "more": [SimpleNamespace(keys=c), "text", None, 3]}
    assert [t.item() for t in tensors_of(output)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (NET, "Block"),
        (NET.forward, "Block"),
        (closure(NET), "call"),
        (COMPILED, "Block"),
        (functools.partial(closure(NET)), "call"),
    ],
    ids=["module", "method", "function", "compiled", "partial"],
)
def test_name(target, name):
    assert Workload.of(target, X).name == name


def test_device_is_where_the_parameters_are_and_mixed_devices_are_noted():
    net = nn.Linear(3, 3)
    workload = Workload.of(net, X.to("meta"))
    assert [d.type for d in workload.devices] == ["cpu", "meta"]
    assert "several devices" in workload.notes[0]
    assert Workload.of(lambda x: x, X.to("meta")).device.type == "meta"


def test_scalars_on_the_cpu_are_not_a_second_device():
    workload = Workload.of(lambda x, scale: x, (X.to("meta"), torch.tensor(2.0)))
    assert [d.type for d in workload.devices] == ["meta"]


def test_dtypes_by_elements():
    net = nn.Sequential(nn.Linear(8, 8).bfloat16(), nn.LayerNorm(4))
    assert Workload.of(net, X).dtypes == {"bfloat16": 72, "float32": 8}


@pytest.mark.parametrize(
    ("target", "compiled"),
    [(NET, False), (COMPILED, True), (torch.compile(names_a_global, backend="eager"), True)],
    ids=["module", "compiled module", "compiled function"],
)
def test_compiled_models_are_noticed(target, compiled):
    workload = Workload.of(target, X)
    assert workload.compiled == compiled
    assert bool(workload.notes) == compiled


def test_isolated_call_protects_containers_and_caches_but_copies_no_tensor_and_no_model():
    class Cache:
        def __init__(self) -> None:
            self.keys = [X]
            self.count = 0

    cache, items, holder = Cache(), [X], SimpleNamespace(model=NET)
    fresh = Call((X, items, cache, holder)).isolated()
    fresh.args[1].append(1)
    fresh.args[2].count += 1
    fresh.args[2].keys.append(2)
    assert (len(items), cache.count, len(cache.keys)) == (1, 0, 1)
    assert fresh.args[0] is X
    assert fresh.args[1][0] is X
    assert fresh.args[3] is holder
