"""Contents that change with a nonce, and what a worker says of its results."""

from __future__ import annotations

import pytest
import torch

from tests.support.kernels import f32, problem
from torch_forge.benchmarking.commitment import digest, sampled
from torch_forge.graphs.fresh import STEP_BYTES, Fresh
from torch_forge.records.problem import Graph
from torch_forge.records.tensors import TensorSpec

CPU = torch.device("cpu")
TABLE = problem(
    lambda t, i, m: torch.nn.functional.embedding(i, t) * m, f32(50, 64), TensorSpec((400,), (1,), "int64"), f32(64)
).graph


def one_input(*, shape: tuple[int, ...], stride: tuple[int, ...], dtype: str = "float32") -> Graph:
    return problem(lambda x: x + 1, TensorSpec(shape, stride, dtype)).graph


def test_the_same_nonce_gives_the_same_bytes_in_another_process():
    ours, theirs = Fresh(TABLE, seed=4, device=CPU), Fresh(TABLE, seed=4, device=CPU)
    for call, tensors in enumerate(ours.inputs(77, 3)):
        again = theirs.one(77, call)
        ours.touch(tensors, 5, call)
        theirs.touch(again, 5, call)
        assert all(map(torch.equal, tensors, again))


@pytest.mark.parametrize("change", ["seed", "nonce", "call"])
def test_another_nonce_changes_nearly_every_element(change: str):
    fresh = Fresh(TABLE, seed=4, device=CPU)
    before = [t.clone() for t in fresh.one(77, 0)]
    other = Fresh(TABLE, seed=5, device=CPU) if change == "seed" else fresh
    after = other.one(78 if change == "nonce" else 77, 1 if change == "call" else 0)
    for a, b in zip(before, after, strict=True):
        assert float((a != b).float().mean()) > 0.9


def test_values_keep_their_distribution_and_stay_valid():
    fresh = Fresh(TABLE, seed=1, device=CPU)
    for nonce in range(20):
        table, index, scale = fresh.one(nonce, 0)
        fresh.touch([table, index, scale], nonce, 0)
        assert 0 <= int(index.min()) <= int(index.max()) < 50
        assert abs(float(table.mean())) < 0.15
        assert float(table.std()) == pytest.approx(1.0, abs=0.1)
        assert bool((table != 0).all())


def test_addresses_move_by_whole_steps():
    fresh = Fresh(TABLE, seed=1, device=CPU)
    places = {fresh.inputs(nonce, 2)[0][0].data_ptr() for nonce in range(40)}
    assert len(places) > 20
    assert {place % STEP_BYTES for place in places} == {0}


def test_calls_do_not_share_memory_and_one_is_apart():
    fresh = Fresh(TABLE, seed=1, device=CPU)
    spare = fresh.one(9, 0)
    before = [t.clone() for t in spare]
    calls = fresh.inputs(10, 4)
    assert len({t.untyped_storage().data_ptr() for tensors in (*calls, spare) for t in tensors}) == 15
    assert all(map(torch.equal, spare, before))


def test_shared_inputs_are_one_tensor_for_all_calls():
    fresh = Fresh(TABLE, seed=1, device=CPU, shared=1)
    first, second = fresh.inputs(10, 2)
    assert first[0].data_ptr() == second[0].data_ptr()
    assert first[1].data_ptr() != second[1].data_ptr()
    before = first[0].clone()
    fresh.touch(first, 3, 0)
    assert torch.equal(first[0], before)
    assert torch.equal(Fresh(TABLE, seed=1, device=CPU, shared=1).one(10, 1)[0], before)


@pytest.mark.parametrize(
    "graph",
    [
        one_input(shape=(6, 7), stride=(1, 6)),
        one_input(shape=(6, 7), stride=(0, 1)),
        one_input(shape=(4, 3), stride=(1, 1)),
        one_input(shape=(), stride=()),
        one_input(shape=(5,), stride=(3,), dtype="int32"),
        one_input(shape=(9,), stride=(1,), dtype="bool"),
    ],
    ids=["transposed", "broadcast", "overlapping", "scalar", "strided", "bool"],
)
def test_every_layout_is_filled_and_touched(graph: Graph):
    fresh = Fresh(graph, seed=2, device=CPU)
    seen = set()
    for nonce in range(30):
        (tensor,) = fresh.one(nonce, 0)
        assert (tuple(tensor.shape), tensor.stride()) == (graph.inputs[0].shape, graph.inputs[0].stride)
        fresh.touch([tensor], nonce, 0)
        seen.add(tuple(tensor.flatten().tolist()))
    assert len(seen) > 20


def test_a_touch_changes_one_element():
    fresh = Fresh(TABLE, seed=1, device=CPU)
    tensors = fresh.one(1, 0)
    before = [t.clone() for t in tensors]
    fresh.touch(tensors, 2, 0)
    assert [int((a != b).sum()) for a, b in zip(tensors, before, strict=True)] == [1, 0, 0]


def test_nothing_to_touch():
    fresh = Fresh(one_input(shape=(0, 4), stride=(4, 1)), seed=1, device=CPU)
    (tensor,) = fresh.one(1, 0)
    fresh.touch([tensor], 2, 0)
    assert tensor.numel() == 0


@pytest.mark.parametrize("numel", [0, 1, 1000, 50_001, 300_003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.float16, torch.int64])
def test_a_digest_changes_with_any_element(numel: int, dtype: torch.dtype):
    result = torch.randn(numel).to(dtype)
    said = digest([result, result])
    assert said == digest([result.clone(), result.clone()])
    assert len(said) == 32
    for at in {0, numel // 2, numel - 1} if numel else ():
        other = result.clone()
        other[at] = not bool(other[at]) if dtype == torch.bool else 3
        assert digest([result, other]) != said
    if numel > 1:
        assert (digest([result.roll(1), result]) == said) == bool(torch.equal(result.roll(1), result))


def test_a_digest_is_of_elements_in_order_whatever_the_strides():
    result = torch.randn(300, 200)
    assert digest([result.t().contiguous().t()]) == digest([result])
    assert digest([torch.randn(60_001)[1:].copy_(result.flatten())]) == digest([result])


def test_samples_spread_over_the_result_and_depend_on_the_place():
    result = torch.arange(10_000.0)
    said = sampled([result], 123)
    shown = torch.frombuffer(bytearray.fromhex(said), dtype=torch.float32)
    assert 64 <= shown.numel() <= 66
    assert float(shown[0]) < 200
    assert float(shown[-1]) > 9_800
    assert sampled([result], 124) != said
    assert sampled([torch.empty(0)], 5) == ""
