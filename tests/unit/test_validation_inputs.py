"""Inputs: the same from the same seed, exactly of their layout, valid as indices, and surrounded by NaN."""

from __future__ import annotations

import pytest
import torch

from tests.support.kernels import f32, problem
from tests.support.threads import one_thread  # noqa: F401 (a fixture)
from torch_forge.graphs.inputs import DISTRIBUTIONS, draw, draw_inputs
from torch_forge.graphs.place import NAN_BYTE, PLAIN_BYTE, ZONE_BYTES, place, surroundings_kept, tensor_in
from torch_forge.graphs.ranges import IndexRange, index_ranges
from torch_forge.records.tensors import TensorSpec, contiguous

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
LAYOUTS = {
    "contiguous": f32(8, 33),
    "transposed": TensorSpec((8, 33), (1, 8), "float32"),
    "sliced": TensorSpec((8, 33), (70, 2), "float32"),
    "expanded": TensorSpec((8, 33), (0, 1), "float32"),
    "overlapping": TensorSpec((8, 33), (3, 1), "float32"),
    "scalar": f32(),
    "empty": f32(0, 33),
    "half": contiguous((8, 33), "float16"),
    "bfloat16": contiguous((8, 33), "bfloat16"),
    "double": contiguous((8, 33), "float64"),
    "int": contiguous((8, 33), "int32"),
    "byte": contiguous((8, 33), "uint8"),
    "bool": contiguous((8, 33), "bool"),
}


@pytest.mark.parametrize("spec", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_seed_names_the_bytes_and_the_layout_is_exact(spec: TensorSpec, distribution: str):
    a = draw(spec, seed=5, distribution=distribution, device=CPU)
    b = draw(spec, seed=5, distribution=distribution, device=CPU)
    assert TensorSpec(tuple(a.tensor.shape), tuple(a.tensor.stride()), str(a.tensor.dtype)[6:]) == spec
    assert torch.equal(a.region, b.region)


@pytest.mark.parametrize("distribution", sorted(set(DISTRIBUTIONS) - {"special", "extreme"}))
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_ordinary_distributions_are_finite(distribution: str, dtype: str):
    assert draw(contiguous((64, 64), dtype), seed=1, distribution=distribution, device=CPU).tensor.isfinite().all()


def test_another_seed_and_another_position_give_other_values():
    graph = problem(torch.add, f32(64), f32(64)).graph
    a, b = (p.tensor for p in draw_inputs(graph, seed=1, distribution="normal", device=CPU))
    c = draw_inputs(graph, seed=2, distribution="normal", device=CPU)[0].tensor
    assert not torch.equal(a, b)
    assert not torch.equal(a, c)


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    draw(f32(64), seed=1, distribution="special", device=CPU)
    assert torch.equal(torch.get_rng_state(), before)


def test_special_inputs_have_nan_infinity_and_clean_rows():
    x = draw(f32(64, 32), seed=3, distribution="special", device=CPU).tensor
    assert x.isnan().any()
    assert x.isinf().any()
    assert x.isfinite().all(1).sum() >= 40


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_pointers_are_aligned_to_the_zone_plus_the_offset(offset: int):
    x = draw(f32(5), seed=1, distribution="normal", device=CPU, offset_elements=offset).tensor
    assert x.data_ptr() % ZONE_BYTES == 4 * offset


def test_an_input_is_surrounded_by_nan():
    placed = draw(TensorSpec((4, 4), (8, 1), "float32"), seed=1, distribution="normal", device=CPU)
    flat = placed.region.view(torch.float32)
    assert flat.isfinite().sum() == 16
    assert flat.isnan().sum() == flat.numel() - 16


@pytest.mark.parametrize(
    "spec", [f32(4, 4), TensorSpec((4, 4), (8, 2), "float32"), TensorSpec((3, 3), (4, 1), "bool")], ids=str
)
@pytest.mark.parametrize("byte", [NAN_BYTE, PLAIN_BYTE])
def test_writes_outside_an_output_are_seen(spec: TensorSpec, byte: int):
    placed = place(spec, device=CPU, byte=byte)
    placed.tensor.fill_(1)
    assert surroundings_kept(placed.region, spec, byte)
    assert torch.equal(tensor_in(placed.region.clone(), spec), placed.tensor)
    for at in [0, ZONE_BYTES - 1, placed.region.numel() - ZONE_BYTES, placed.region.numel() - 1]:
        spoiled = placed.region.clone()
        spoiled[at] ^= 1
        assert not surroundings_kept(spoiled, spec, byte)


def test_writes_into_the_gaps_of_an_output_are_seen():
    spec = TensorSpec((4, 4), (8, 2), "float32")
    placed = place(spec, device=CPU, byte=NAN_BYTE)
    placed.region[ZONE_BYTES + 4] = 0
    assert not surroundings_kept(placed.region, spec, NAN_BYTE)


INDEX = contiguous((16,), "int64")
RANGES = {
    "embedding": (torch.nn.functional.embedding, (INDEX, f32(10, 4)), 0, IndexRange(10, wraps=False)),
    "subscript": (lambda x, i: x[i], (f32(10, 4), INDEX), 1, IndexRange(10, wraps=True)),
    "gather": (lambda x, i: x.gather(1, i.view(4, 4)), (f32(4, 7), INDEX), 1, IndexRange(7, wraps=False)),
    "through a cast": (lambda x, i: x[i.long() + 2], (f32(10), contiguous((16,), "int32")), 1, IndexRange(8, wraps=True)),
    "loss": (torch.nn.functional.cross_entropy, (f32(16, 9), INDEX), 1, IndexRange(9, wraps=False, ignore=-100)),
    "arithmetic": (torch.add, (INDEX, INDEX), 0, None),
}


@pytest.mark.parametrize(("fn", "specs", "position", "expected"), RANGES.values(), ids=RANGES.keys())
def test_indices_are_found(fn, specs, position, expected):
    assert index_ranges(problem(fn, *specs).graph)[position] == expected


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("name", ["embedding", "subscript", "gather", "through a cast", "loss"])
def test_indices_drawn_are_valid(name: str, distribution: str):
    fn, specs, _, _ = RANGES[name]
    inputs = draw_inputs(problem(fn, *specs).graph, seed=1, distribution=distribution, device=CPU)
    fn(*(p.tensor for p in inputs))
