"""What each primitive ATen operation means at one index: the table behind ``lower.Builder.value``.

A handler gets the builder, the node, which of its outputs is asked for and the index, and returns the value.
Rounding points are eager's: each operation's result is rounded to its element type, and the 16-bit float
types are computed in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from torch_forge.graphs.index import Affine
from torch_forge.graphs.unlowerable import UnlowerableError
from torch_forge.records.problem import REF, Node

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


# --- element-wise ----------------------------------------------------------------------------------------------------

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
    # Zero first: of two equal operands the second is taken, and relu(-0.0) is -0.0.
    return b.op("max", 0, *operands_at(b, node, node.args[:1], index), dtype=out, compute=compute_type(out))


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


# --- values from nothing ---------------------------------------------------------------------------------------------


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
