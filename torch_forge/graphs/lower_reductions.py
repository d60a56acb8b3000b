"""Reductions and scans at one index: folds over the row variable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch_forge.graphs.index import Affine
from torch_forge.graphs.lower_ops import HANDLERS, argument, compute_type, handles
from torch_forge.graphs.unlowerable import UnlowerableError
from torch_forge.records.problem import Graph, Node

if TYPE_CHECKING:
    from torch_forge.graphs.lower import Builder, Value


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
