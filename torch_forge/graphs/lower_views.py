"""Views, choice by position and indirect access at one index: where lowering maps indices instead of computing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch_forge.graphs.index import Affine, constant, delinearize, reshape
from torch_forge.graphs.lower_ops import argument, handles
from torch_forge.graphs.unlowerable import UnlowerableError
from torch_forge.records.problem import Node
from torch_forge.records.tensors import DTYPES

if TYPE_CHECKING:
    from torch_forge.graphs.lower import Builder, Value


@handles("view.default", "_unsafe_view.default", "reshape.default")
def _view(b: Builder, node: Node, _: int, index: tuple[Affine, ...]) -> Value:
    source = b.graph.spec(node.args[0]).shape
    return b.value(node.args[0], reshape(index, node.outputs[0].shape, source, b.ranges))


@handles("expand.default")
def _expand(b: Builder, node: Node, _: int, index: tuple[Affine, ...]) -> Value:
    return b.at(node.args[0], node.outputs[0].shape, index)


def _dim(node: Node, position: int, rank: int, default: int = 0) -> int:
    dim = argument(node, position, "dim", default)
    return int(dim) % max(rank, 1)


@handles("permute.default", "t.default", "transpose.int")
def _permute(b: Builder, node: Node, _: int, index: tuple[Affine, ...]) -> Value:
    rank = len(index)
    order = list(range(rank))
    if node.op == "aten.permute.default":
        order = [int(d) % rank for d in node.args[1]]
    elif rank == 2 or node.op == "aten.transpose.int":
        x, y = (0, 1) if node.op == "aten.t.default" else (int(node.args[1]) % rank, int(node.args[2]) % rank)
        order[x], order[y] = order[y], order[x]
    source = [constant(0)] * rank
    for k, d in enumerate(order):
        source[d] = index[k]
    return b.value(node.args[0], source)


@handles("unsqueeze.default")
def _unsqueeze(b: Builder, node: Node, _: int, index: tuple[Affine, ...]) -> Value:
    dim = int(node.args[1]) % len(index)
    return b.value(node.args[0], [i for d, i in enumerate(index) if d != dim])


@handles("squeeze.dim", "squeeze.dims", "squeeze.default")
def _squeeze(b: Builder, node: Node, _: int, index: tuple[Affine, ...]) -> Value:
    source = b.graph.spec(node.args[0]).shape
    return b.value(node.args[0], reshape(index, node.outputs[0].shape, source, b.ranges))


@handles("slice.Tensor")
def _slice(b: Builder, node: Node, _: int, index: tuple[Affine, ...]) -> Value:
    shape = b.graph.spec(node.args[0]).shape
    dim = _dim(node, 1, len(shape))
    start, step = argument(node, 2, "start", 0) or 0, argument(node, 4, "step", 1)
    start = max(0, min(start + shape[dim] if start < 0 else start, shape[dim]))
    source = list(index)
    source[dim] = index[dim] * step + start
    return b.value(node.args[0], source)


@handles("select.int")
def _select(b: Builder, node: Node, _: int, index: tuple[Affine, ...]) -> Value:
    shape = b.graph.spec(node.args[0]).shape
    dim, at = int(node.args[1]) % len(shape), int(node.args[2])
    at = at + shape[dim] if at < 0 else at
    return b.value(node.args[0], [*index[:dim], constant(at), *index[dim:]])


@handles("split.Tensor", "split_with_sizes.default", "unbind.int", "chunk.default")
def _split(b: Builder, node: Node, output: int, index: tuple[Affine, ...]) -> Value:
    shape = b.graph.spec(node.args[0]).shape
    if node.op == "aten.unbind.int":
        dim = _dim(node, 1, len(shape))
        return b.value(node.args[0], [*index[:dim], constant(output), *index[dim:]])
    dim = _dim(node, 2, len(shape))
    start = sum(s.shape[dim] for s in node.outputs[:output])
    source = list(index)
    source[dim] = index[dim] + start
    return b.value(node.args[0], source)


@handles("flip.default")
def _flip(b: Builder, node: Node, _: int, index: tuple[Affine, ...]) -> Value:
    shape = node.outputs[0].shape
    source = list(index)
    for d in node.args[1]:
        d = int(d) % len(shape)
        source[d] = index[d] * -1 + (shape[d] - 1)
    return b.value(node.args[0], source)


@handles("as_strided.default")
def _as_strided(b: Builder, node: Node, _: int, index: tuple[Affine, ...]) -> Value:
    spec = b.graph.spec(node.args[0])
    if not spec.is_contiguous:
        raise UnlowerableError("as_strided of a tensor that is not contiguous")
    strides, offset = node.args[2], argument(node, 3, "storage_offset", 0) or 0
    position = constant(int(offset))
    for i, stride, size in zip(index, strides, node.outputs[0].shape, strict=True):
        position = position + i * int(stride) if size > 1 else position
    return b.value(node.args[0], delinearize(position, spec.shape, b.ranges))


def _masked(b: Builder, condition: Value, ask: Callable[[], Value]) -> Value:
    """A value that may only be loaded where the condition holds."""
    outer = b.mask
    name = b.named(condition, "bool")
    b.mask = name if outer is None else b.op("and", outer, name, dtype="bool", compute="bool")
    try:
        return ask()
    finally:
        b.mask = outer


@handles("cat.default")
def _cat(b: Builder, node: Node, _: int, index: tuple[Affine, ...]) -> Value:
    tensors = [t for t in node.args[0] if math.prod(b.graph.spec(t).shape) > 0]
    out = node.outputs[0].dtype
    dim = _dim(node, 1, len(index))
    starts = [0]
    for t in tensors:
        starts.append(starts[-1] + b.graph.spec(t).shape[dim])
    position = b.index_value(index[dim])
    result: Value | None = None
    for k in reversed(range(len(tensors))):
        inside = b.op("lt", position, starts[k + 1], dtype="bool", compute="int64")
        if k > 0:
            after = b.op("ge", position, starts[k], dtype="bool", compute="int64")
            inside = after if k == len(tensors) - 1 else b.op("and", after, inside, dtype="bool", compute="bool")
        source = list(index)
        source[dim] = index[dim] + -starts[k]
        piece = _masked(b, inside, lambda t=tensors[k], s=source: b.value(t, s))  # type: ignore[misc]
        result = piece if result is None else b.op("where", inside, piece, result, dtype=out, compute=out)
    assert result is not None
    return result


@handles("constant_pad_nd.default")
def _pad(b: Builder, node: Node, _: int, index: tuple[Affine, ...]) -> Value:
    shape = b.graph.spec(node.args[0]).shape
    out = node.outputs[0].dtype
    pads, fill = node.args[1], argument(node, 2, "value", 0)
    source, inside = list(index), None
    for k in range(len(pads) // 2):
        d = len(shape) - 1 - k
        before = int(pads[2 * k])
        source[d] = index[d] + -before
        position = b.index_value(index[d])
        low = b.op("ge", position, before, dtype="bool", compute="int64")
        high = b.op("lt", position, before + shape[d], dtype="bool", compute="int64")
        both = b.op("and", low, high, dtype="bool", compute="bool")
        inside = both if inside is None else b.op("and", inside, both, dtype="bool", compute="bool")
    assert inside is not None
    value = _masked(b, inside, lambda: b.value(node.args[0], source))
    return b.op("where", inside, value, fill, dtype=out, compute=out)


@handles("embedding.default")
def _embedding(b: Builder, node: Node, _: int, index: tuple[Affine, ...]) -> Value:
    row = b.value(node.args[1], index[:-1])
    return b.value(node.args[0], [b.checked_index(row, b.graph.spec(node.args[0]).shape[0], wrap=False), index[-1]])


@handles("gather.default", "index_select.default")
def _gather(b: Builder, node: Node, _: int, index: tuple[Affine, ...]) -> Value:
    shape = b.graph.spec(node.args[0]).shape
    dim = int(node.args[1]) % len(shape)
    where = index if node.op == "aten.gather.default" else [index[dim]]
    chosen = b.value(node.args[2], where)
    source = list(index)
    source[dim] = b.checked_index(chosen, shape[dim], wrap=False)
    return b.value(node.args[0], source)


@handles("index.Tensor")
def _index_tensor(b: Builder, node: Node, _: int, index: tuple[Affine, ...]) -> Value:
    shape = b.graph.spec(node.args[0]).shape
    chosen = list(node.args[1]) + [None] * (len(shape) - len(node.args[1]))
    places = [d for d, t in enumerate(chosen) if t is not None]
    specs = [b.graph.spec(chosen[d]) for d in places]
    if any(DTYPES[s.dtype].kind == "bool" for s in specs):
        raise UnlowerableError("indexing by a mask")
    rank = max(len(s.shape) for s in specs)
    joined = places == list(range(places[0], places[-1] + 1))
    first = places[0] if joined else 0
    block, rest = index[first : first + rank], [*index[:first], *index[first + rank :]]
    block_shape = node.outputs[0].shape[first : first + rank]
    source: list[Affine] = []
    for d, t in enumerate(chosen):
        if t is None:
            source.append(rest.pop(0))
        else:
            source.append(b.checked_index(b.at(t, block_shape, block), shape[d], wrap=True))
    return b.value(node.args[0], source)
