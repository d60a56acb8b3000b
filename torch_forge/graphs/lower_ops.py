"""What each primitive ATen operation means at one index: the table behind ``lower.Builder.value``.

A handler gets the builder, the node, which of its outputs is asked for and the index, and returns the value.
Rounding points are eager's: each operation's result is rounded to its element type, and the 16-bit float
types are computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from torch_forge.graphs.index import Affine, constant, delinearize, linearize, reshape
from torch_forge.graphs.unlowerable import UnlowerableError
from torch_forge.records.problem import DTYPE, REF, Graph, Node
from torch_forge.records.tensors import DTYPES

if TYPE_CHECKING:
    from torch_forge.graphs.lower import Builder, Value

Handler = Callable[["Builder", Node, int, tuple[Affine, ...]], "Value"]
HANDLERS: dict[str, Handler] = {}


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Register a handler under ``aten.<name>``."""

    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name if name.startswith("prims.") else f"aten.{name}"] = handler
        return handler

    return register


def compute_type(dtype: str) -> str:
    """The type in which eager computes: float32 for the 16-bit floats."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def argument(node: Node, position: int, name: str, default: Any = None) -> Any:
    """A positional or keyword argument."""
    if position < len(node.args):
        return node.args[position]
    return dict(node.kwargs).get(name, default)


def common_type(b: Builder, operands: Sequence[Any]) -> str:
    """torch's promotion of tensors and Python numbers."""
    result: torch.dtype | None = None
    probes = [_probe(b, o) for o in operands]
    first = probes[0]
    for other in probes[1:]:
        first = (
            torch.empty((), dtype=torch.result_type(first, other), device="meta")
            if _scalar(first, other)
            else torch.empty((1,), dtype=torch.result_type(first, other), device="meta")
        )
    result = first.dtype if isinstance(first, torch.Tensor) else torch.result_type(first, first)
    return str(result).removeprefix("torch.")


def _probe(b: Builder, operand: Any) -> Any:
    if isinstance(operand, str) and operand.startswith(REF):
        spec = b.graph.spec(operand)
        return torch.empty([1] * len(spec.shape), dtype=getattr(torch, spec.dtype), device="meta")
    return operand


def _scalar(*operands: Any) -> bool:
    return all(not isinstance(o, torch.Tensor) or o.dim() == 0 for o in operands)


def operands_at(b: Builder, node: Node, operands: Sequence[Any], index: Sequence[Affine]) -> list[Value]:
    """Operands at the broadcast index of the node's result."""
    shape = node.outputs[0].shape
    return [b.at(o, shape, index) for o in operands]


# --- element-wise ---------------------------------------------------------------------------------------------

_UNARY = [
    "abs",
    "neg",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "tan",
    "tanh",
    "sinh",
    "cosh",
    "asin",
    "acos",
    "atan",
    "erf",
    "erfc",
    "sigmoid",
    "reciprocal",
    "sign",
    "floor",
    "ceil",
    "trunc",
    "round",
    "square",
]
_BINARY = {
    "mul.Tensor": "mul", "mul.Scalar": "mul", "div.Tensor": "div", "div.Scalar": "div", "maximum.default": "max",
    "minimum.default": "min",
    "atan2.default": "atan2", "fmod.Tensor": "fmod", "fmod.Scalar": "fmod", "remainder.Tensor": "remainder",
    "remainder.Scalar": "remainder",
    "bitwise_and.Tensor": "bit_and", "bitwise_or.Tensor": "bit_or", "bitwise_xor.Tensor": "bit_xor",
    "bitwise_and.Scalar": "bit_and", "bitwise_or.Scalar": "bit_or", "bitwise_xor.Scalar": "bit_xor",
}  # fmt: skip
_COMPARE = ("lt", "le", "gt", "ge", "eq", "ne")


def _unary(fn: str) -> Handler:
    def handler(b: Builder, node: Node, _: int, index: tuple[Affine, ...]) -> Value:
        if fn == "round" and argument(node, 1, "decimals", 0):
            raise UnlowerableError("round to decimals")
        out = node.outputs[0].dtype
        return b.op(fn, *operands_at(b, node, node.args[:1], index), dtype=out, compute=compute_type(out))

    return handler


def _binary(fn: str) -> Handler:
    def handler(b: Builder, node: Node, _: int, index: tuple[Affine, ...]) -> Value:
        out = node.outputs[0].dtype
        return b.op(fn, *operands_at(b, node, node.args[:2], index), dtype=out, compute=compute_type(out))

    return handler


def _compare(fn: str) -> Handler:
    def handler(b: Builder, node: Node, _: int, index: tuple[Affine, ...]) -> Value:
        compute = compute_type(common_type(b, node.args[:2]))
        return b.op(fn, *operands_at(b, node, node.args[:2], index), dtype="bool", compute=compute)

    return handler


for _name in _UNARY:
    HANDLERS[f"aten.{_name}.default"] = _unary(_name)
HANDLERS["aten.sgn.default"] = _unary("sign")
for _name, _fn in _BINARY.items():
    HANDLERS[f"aten.{_name}"] = _binary(_fn)
for _name in _COMPARE:
    HANDLERS[f"aten.{_name}.Tensor"] = HANDLERS[f"aten.{_name}.Scalar"] = _compare(_name)


@handles("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar")
def _add(b: Builder, node: Node, _: int, index: tuple[Affine, ...]) -> Value:
    out = node.outputs[0].dtype
    left, right = operands_at(b, node, node.args[:2], index)
    alpha = argument(node, 2, "alpha", 1)
    if alpha != 1:
        right = b.op("mul", right, alpha, dtype=compute_type(out), compute=compute_type(out))
    fn = "add" if ".add." in node.op else "sub"
    if out == "bool":
        fn = "or"
    return b.op(fn, left, right, dtype=out, compute=compute_type(out))


@handles("div.Tensor_mode", "div.Scalar_mode")
def _div_mode(b: Builder, node: Node, _: int, index: tuple[Affine, ...]) -> Value:
    fn = {None: "div", "trunc": "trunc_div", "floor": "floor_div"}[argument(node, 2, "rounding_mode")]
    return _binary(fn)(b, node, 0, index)


@handles("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def _pow(b: Builder, node: Node, _: int, index: tuple[Affine, ...]) -> Value:
    out = node.outputs[0].dtype
    compute = compute_type(out)
    base, exponent = operands_at(b, node, node.args[:2], index)
    kind = {"dtype": out, "compute": compute}
    if exponent == 2:
        return b.op("mul", base, base, **kind)
    if exponent == 3:  # as eager: two products in the compute type, rounded once
        return b.op("mul", b.op("mul", base, base, dtype=compute, compute=compute), base, **kind)
    if exponent == 0.5:
        return b.op("sqrt", base, **kind)
    if exponent == -0.5:
        return b.op("rsqrt", base, **kind)
    if exponent == -1:
        return b.op("reciprocal", base, **kind)
    return b.op("pow", base, exponent, **kind)


@handles("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(b: Builder, node: Node, _: int, index: tuple[Affine, ...]) -> Value:
    out = node.outputs[0].dtype
    return b.op("where", *operands_at(b, node, node.args[:3], index), dtype=out, compute=out)


@handles("relu.default")
def _relu(b: Builder, node: Node, _: int, index: tuple[Affine, ...]) -> Value:
    out = node.outputs[0].dtype
    return b.op("max", *operands_at(b, node, node.args[:1], index), 0, dtype=out, compute=compute_type(out))


@handles("isnan.default", "isinf.default")
def _classify(b: Builder, node: Node, _: int, index: tuple[Affine, ...]) -> Value:
    source = b.graph.spec(node.args[0]).dtype
    fn = node.op.split(".")[1]
    return b.op(fn, *operands_at(b, node, node.args[:1], index), dtype="bool", compute=compute_type(source))


def _logic(fn: str) -> Handler:
    def handler(b: Builder, node: Node, _: int, index: tuple[Affine, ...]) -> Value:
        return b.op(fn, *operands_at(b, node, node.args[: 1 if fn == "not" else 2], index), dtype="bool", compute="bool")

    return handler


for _name in ("and", "or", "xor", "not"):
    HANDLERS[f"aten.logical_{_name}.default"] = _logic(_name)


@handles("bitwise_not.default")
def _bitwise_not(b: Builder, node: Node, _: int, index: tuple[Affine, ...]) -> Value:
    out = node.outputs[0].dtype
    fn = "not" if out == "bool" else "bit_not"
    return b.op(fn, *operands_at(b, node, node.args[:1], index), dtype=out, compute=out)


@handles("_to_copy.default", "clone.default", "alias.default", "detach.default", "lift_fresh_copy.default",
"contiguous.default",
         "prims.convert_element_type.default")  # fmt: skip
def _cast(b: Builder, node: Node, _: int, index: tuple[Affine, ...]) -> Value:
    source, out = b.graph.spec(node.args[0]).dtype, node.outputs[0].dtype
    value = b.value(node.args[0], index)
    return value if source == out else b.op("cast", value, dtype=out, compute=source)


# --- values from nothing --------------------------------------------------------------------------------------


@handles(
    "full.default",
    "full_like.default",
    "scalar_tensor.default",
    "zeros.default",
    "ones.default",
    "zeros_like.default",
    "ones_like.default",
)
def _full(b: Builder, node: Node, _: int, __: tuple[Affine, ...]) -> Value:
    name = node.op.split(".")[1]
    value = {"zeros": 0, "zeros_like": 0, "ones": 1, "ones_like": 1, "scalar_tensor": node.args[0] if node.args else 0}.get(
        name
    )
    value = argument(node, 1, "fill_value") if value is None else value
    dtype = node.outputs[0].dtype
    return b.op("cast", value, dtype=dtype, compute=dtype)


@handles("arange.start_step", "arange.start", "arange.default")
def _arange(b: Builder, node: Node, _: int, index: tuple[Affine, ...]) -> Value:
    numbers = [a for a in node.args if isinstance(a, (int, float))]
    start, step = (numbers[0] if len(numbers) > 1 else 0), (numbers[2] if len(numbers) > 2 else 1)
    if not isinstance(start, int) or not isinstance(step, int):
        raise UnlowerableError("arange of fractions")
    out = node.outputs[0].dtype
    value = b.index_value(index[0] * step + start)
    return value if out == "int64" else b.op("cast", value, dtype=out, compute="int64")


# --- views ----------------------------------------------------------------------------------------------------


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


# --- choice by position ---------------------------------------------------------------------------------------


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


# --- indirect -------------------------------------------------------------------------------------------------


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


# --- reductions and scans -------------------------------------------------------------------------------------

REDUCTIONS = {
    "sum.dim_IntList": "sum", "sum.default": "sum", "mean.dim": "mean", "mean.default": "mean", "amax.default": "max",
    "amin.default": "min",
    "prod.dim_int": "prod", "any.dim": "any", "any.dims": "any", "any.default": "any", "all.dim": "all",
    "all.dims": "all", "all.default": "all",
    "var.correction": "var", "var_mean.correction": "var", "argmax.default": "argmax", "argmin.default": "argmin",
    "max.dim": "max",
    "min.dim": "min",
}  # fmt: skip
SCANS = {"cumsum.default": "sum", "cumprod.default": "prod"}


def row_dims(graph: Graph, node: Node) -> tuple[int, ...] | None:
    """The dimensions a reduction or scan runs over; None for any other operation."""
    name = node.op.removeprefix("aten.")
    if name not in REDUCTIONS and name not in SCANS:
        return None
    rank = len(graph.spec(node.args[0]).shape)
    if name in ("sum.default", "mean.default", "any.default", "all.default"):
        return tuple(range(rank))
    dims = argument(node, 1, "dim")
    if dims is None or dims == ():
        return tuple(range(rank))
    dims = dims if isinstance(dims, tuple) else (dims,)
    return tuple(sorted(int(d) % max(rank, 1) for d in dims))


def _reduced_input(b: Builder, node: Node, index: Sequence[Affine]) -> Value:
    """The reduced tensor along the current row, for the result element at ``index``."""
    spec = b.graph.spec(node.args[0])
    dims = row_dims(b.graph, node)
    assert dims is not None
    if any(i.mentions(("row",)) for i in index):
        raise UnlowerableError("a reduction of values that themselves vary along the row")
    keepdim = len(index) == len(spec.shape) and bool(dims)
    kept = [i for d, i in enumerate(index) if d not in dims] if keepdim else list(index)
    row = list(b.row_index([spec.shape[d] for d in dims]))
    return b.value(node.args[0], [row.pop(0) if d in dims else kept.pop(0) for d in range(len(spec.shape))])


def _reduction(b: Builder, node: Node, output: int, index: tuple[Affine, ...]) -> Value:
    name = node.op.removeprefix("aten.")
    fn, out, source = REDUCTIONS[name], node.outputs[output].dtype, b.graph.spec(node.args[0]).dtype
    if (
        name in ("argmax.default", "argmin.default")
        and argument(node, 1, "dim") is None
        and len(b.graph.spec(node.args[0]).shape) > 1
    ):
        raise UnlowerableError("arg-reduction over several dimensions")
    value = _reduced_input(b, node, index)
    if name in ("max.dim", "min.dim") and output == 1:
        return b.reduce(f"arg{fn}", value, compute_type(source))
    if fn == "var":
        return _variance(b, node, value, output)
    if fn in ("any", "all"):
        return b.reduce(fn, b.op("cast", value, dtype="bool", compute=source), "bool")
    compute = compute_type(source if fn in ("max", "min", "argmax", "argmin") else out)
    total = b.reduce("sum" if fn == "mean" else fn, value, compute)
    if fn == "mean":
        return b.op("div", total, b.row_count(compute), dtype=out, compute=compute)
    return total if compute == out or fn.startswith("arg") else b.op("cast", total, dtype=out, compute=compute)


for _name in REDUCTIONS:
    HANDLERS[f"aten.{_name}"] = _reduction


def _variance(b: Builder, node: Node, value: Value, output: int) -> Value:
    """Two passes: the mean, then the squared distances from it; as exact as eager's Welford."""
    out = node.outputs[output].dtype
    compute = compute_type(out)
    kind = {"dtype": compute, "compute": compute}
    count = b.row_count(compute)
    mean = b.op("div", b.reduce("sum", value, compute), count, **kind)
    if output == 1:
        return mean if compute == out else b.op("cast", mean, dtype=out, compute=compute)
    distance = b.op("sub", value, mean, **kind)
    total = b.reduce("sum", b.op("mul", distance, distance, **kind), compute)
    correction = argument(node, 2, "correction", 1)
    correction = 1 if correction is None else correction
    return b.op("div", total, b.op("sub", count, float(correction), **kind), dtype=out, compute=compute)


@handles(*SCANS)
def _scan(b: Builder, node: Node, _: int, index: tuple[Affine, ...]) -> Value:
    dims = row_dims(b.graph, node)
    assert dims is not None
    out = node.outputs[0].dtype
    spec = b.graph.spec(node.args[0])
    if index[dims[0]] != b.row_index([spec.shape[dims[0]]])[0] or any(
        i.mentions(("row",)) for d, i in enumerate(index) if d != dims[0]
    ):
        raise UnlowerableError("a scan along something other than the row")
    return b.scan(SCANS[node.op.removeprefix("aten.")], b.value(node.args[0], index), out, compute_type(out))


__all__ = ["DTYPE", "HANDLERS", "handles", "linearize", "row_dims"]
