"""Inputs from a seed: the judge and the worker draw the same bytes and need not send them.

Values are generated on the device that will use them; the generators of the CPU and of a GPU differ, so a seed names
inputs only together with a device type. Torch's global generators are left alone. Distributions are
chosen so that wrong kernels show: an N(0, 1) input hides a forgotten mean, a missing tail and a dropped maximum.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch

from torch_forge.graphs.place import NAN_BYTE, Placed, place
from torch_forge.graphs.ranges import IndexRange, index_ranges
from torch_forge.records.problem import Graph
from torch_forge.records.tensors import DTYPES, TensorSpec

DISTRIBUTIONS = (
    "normal", "shifted", "positive", "wide", "cancelling", "small_ints", "special", "extreme", "constant_rows", "one_hot",
    "mixed", "mixed_swapped",
)  # fmt: skip
_ROW_WISE = frozenset({"special", "extreme", "constant_rows", "one_hot"})
"""These go into the largest inputs only: a NaN in a weight would be in every output."""


def draw_inputs(
    graph: Graph,
    *,
    seed: int,
    distribution: str,
    device: torch.device,
    offset_elements: int | Sequence[int] = 0,
    zone: int = NAN_BYTE,
    guarded: bool = False,
) -> list[Placed]:
    """All inputs of a graph; integer inputs are valid indices where the graph uses them as such.

    offset_elements: of every input, or of each. zone, guarded: what is around them, as in ``place``.
    """
    offsets = [offset_elements] * len(graph.inputs) if isinstance(offset_elements, int) else offset_elements
    largest = max((s.numel for s in graph.inputs if DTYPES[s.dtype].kind == "float"), default=0)
    drawn = []
    for position, (spec, limit, offset) in enumerate(zip(graph.inputs, index_ranges(graph), offsets, strict=True)):
        plain = distribution in _ROW_WISE and DTYPES[spec.dtype].kind == "float" and spec.numel < largest
        drawn.append(
            draw(
                spec,
                seed=seed_at(seed, position),
                distribution="normal" if plain else distribution,
                device=device,
                limit=limit,
                offset_elements=offset,
                zone=zone,
                guarded=guarded,
            )
        )
    return drawn


def change_one(graph: Graph, inputs: Sequence[Placed], *, seed: int, reach: float) -> None:
    """Change one random element of the largest input in place: by ``reach`` if it is a float, else to another valid value.

    A result kept for inputs that only looked the same, by pointer, by shape or by some of their values, is then stale.
    """
    limits = index_ranges(graph)
    position = max(
        range(len(graph.inputs)), key=lambda k: (DTYPES[graph.inputs[k].dtype].kind == "float", graph.inputs[k].numel)
    )
    spec = graph.inputs[position]
    if spec.numel == 0:
        return
    target = distinct(inputs[position].tensor, spec)
    generator = torch.Generator().manual_seed(seed)
    at = tuple(int(torch.randint(0, n, (), generator=generator)) for n in target.shape)
    old = target[at]
    if spec.dtype == "bool":
        target[at] = ~old
    elif DTYPES[spec.dtype].kind == "int":
        limit = limits[position]
        target[at] = (int(old) + 1) % max(limit.size, 1) if limit is not None else int(old) ^ 1
    else:
        target[at] = float(old) + reach


def draw(
    spec: TensorSpec,
    *,
    seed: int,
    distribution: str,
    device: torch.device,
    limit: IndexRange | None = None,
    offset_elements: int = 0,
    zone: int = NAN_BYTE,
    guarded: bool = False,
) -> Placed:
    """One tensor of exactly this layout, generated on ``device``, its surroundings a NaN pattern or another ``zone`` byte.

    ``limit`` bounds integers; without it they are small. ``offset_elements`` misaligns the data pointer.
    """
    generator = torch.Generator(device=device)
    generator.manual_seed(seed)
    placed = place(spec, device=device, byte=zone, offset_elements=offset_elements, guarded=guarded)
    if spec.numel == 0:
        return placed
    target = distinct(placed.tensor, spec)
    kind = DTYPES[spec.dtype].kind
    if kind == "bool":
        values = torch.rand(target.shape, generator=generator, device=device) < 0.5
    elif kind == "int":
        values = _integers(target.shape, spec.dtype, distribution, limit, generator)
    else:
        values = _floats(target.shape, spec.dtype, distribution, generator)
    target.copy_(values)
    return placed


def seed_at(seed: int, position: int) -> int:
    """The seed of one input."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{position}".encode()).digest()[:7], "little")


def distinct(tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """A view of every element once: broadcast dimensions shrink to 1, a tensor that overlaps itself becomes its span."""
    reach = 0
    for n, s in sorted(zip(spec.shape, spec.stride, strict=True), key=lambda pair: pair[1]):
        if s == 0 or n == 1:
            continue
        if s <= reach:
            flat = 1 + sum((n - 1) * s for n, s in zip(spec.shape, spec.stride, strict=True))
            return tensor.as_strided((flat,), (1,))
        reach += (n - 1) * s
    return tensor.as_strided([1 if s == 0 else n for n, s in zip(spec.shape, spec.stride, strict=True)], spec.stride)


def _integers(
    shape: torch.Size, dtype: str, distribution: str, limit: IndexRange | None, generator: torch.Generator
) -> torch.Tensor:
    device, info = generator.device, torch.iinfo(getattr(torch, dtype))
    if limit is None:
        reach = 2 ** (info.bits // 2 - 1) if distribution == "wide" else min(64, info.max)
        return torch.randint(max(info.min, -reach), reach, shape, generator=generator, device=device)
    low = -limit.size if limit.wraps and distribution == "wide" else 0
    values = torch.randint(low, max(limit.size, 1), shape, generator=generator, device=device)
    if limit.ignore is not None and distribution in ("special", "extreme") and info.min <= limit.ignore <= info.max:
        values[torch.rand(shape, generator=generator, device=device) < 0.125] = limit.ignore
    return values


def _floats(shape: torch.Size, dtype: str, distribution: str, generator: torch.Generator) -> torch.Tensor:
    wide = torch.float64 if dtype == "float64" else torch.float32
    device = generator.device

    def uniform() -> torch.Tensor:
        return torch.rand(shape, generator=generator, device=device, dtype=wide)

    def normal() -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=wide)

    match distribution:
        case "normal":
            return normal()
        case "shifted":
            return normal().mul_(2).add_(3)
        case "positive":
            return uniform().mul_(2).add_(0.25)
        case "wide":
            reach = 12 if dtype == "float16" else 20
            return torch.exp2(uniform().mul_(2 * reach).sub_(reach)).mul_(normal().sign_())
        case "small_ints":
            return torch.randint(-4, 5, shape, generator=generator, device=device).to(wide)
        case "special" | "extreme":
            return _sprinkled(normal().to(getattr(torch, dtype)), distribution == "extreme", generator)
    return _arranged(normal(), distribution, generator)


def _arranged(values: torch.Tensor, distribution: str, generator: torch.Generator) -> torch.Tensor:
    """Ordinary values, changed by where they stand."""
    match distribution:
        case "cancelling":
            return _cancelling(values)
        case "constant_rows":
            return values[..., :1].expand(values.shape) if values.dim() else values
        case "one_hot":
            return _one_hot(values, generator)
        case "mixed" | "mixed_swapped":
            return _mixed(values, distribution == "mixed_swapped")
    raise ValueError(f"no distribution {distribution!r}; known: {', '.join(DISTRIBUTIONS)}")


def _cancelling(values: torch.Tensor) -> torch.Tensor:
    """Neighbours along the last dimension are large and almost opposite."""
    if values.dim() and values.shape[-1] > 1:
        even = values.shape[-1] // 2 * 2
        small = values[..., 1:even:2].clone()
        values[..., 0:even:2] *= 64
        values[..., 1:even:2] = small - values[..., 0:even:2]
    return values


def _mixed(values: torch.Tensor, swapped: bool) -> torch.Tensor:
    """One half ordinary, the other 64 times as large: looking at the first values says nothing about the rest."""
    flat = values.reshape(-1)
    half = flat.numel() // 2
    (flat[:half] if swapped else flat[half:]).mul_(64)
    return flat.reshape(values.shape)


def _one_hot(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """One non-zero element in each row, at a random place."""
    rows = values.reshape(-1, values.shape[-1] if values.dim() else 1)
    column = torch.randint(0, rows.shape[1], (rows.shape[0], 1), generator=generator, device=values.device)
    return torch.zeros_like(rows).scatter_(1, column, rows.gather(1, column)).reshape(values.shape)


def _sprinkled(values: torch.Tensor, extreme: bool, generator: torch.Generator) -> torch.Tensor:
    """NaN, infinities, signed zeros and denormals in every fourth row, at its first, last or a random element.

    ``extreme`` adds the largest finite numbers, which overflow in most sums.
    """
    info = torch.finfo(values.dtype)
    specials = [math.nan, -0.0, math.inf, info.smallest_normal / 4, -math.inf, 0.0, info.smallest_normal, 1.0]
    specials += [info.max, info.min] if extreme else []
    rows = values.reshape(-1, values.shape[-1] if values.dim() else 1)
    if rows.shape[0] == 1:
        rows = rows.reshape(-1, 1)
    table = torch.tensor(specials, dtype=values.dtype, device=values.device)
    chosen = torch.arange(0, rows.shape[0], 4, device=values.device)
    order = torch.arange(len(chosen), device=values.device)
    random_column = torch.randint(0, rows.shape[1], (len(chosen),), generator=generator, device=values.device)
    column = torch.where(order % 3 == 0, 0, torch.where(order % 3 == 1, rows.shape[1] - 1, random_column))
    rows[chosen, column] = table[order % len(specials)]
    return rows.reshape(values.shape)
