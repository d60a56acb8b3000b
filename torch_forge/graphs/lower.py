"""Problem to loop form: every output element is pulled back through the graph to loads from the inputs.

``value(ref, index)`` answers "what is this tensor at this index?" by asking the same of the arguments: an element-wise
operation asks at the broadcast index, a view at the mapped index, a concatenation at two indices under a mask. So views
cost nothing and disappear, and one scheme covers broadcasts, permutes, slices, rotary halves and gathers.
A reduction asks over the row variable and becomes a ``Reduce`` statement.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch_forge.errors import CaptureError
from torch_forge.graphs import lower_ops, lower_reductions, lower_views
from torch_forge.graphs.decompose import decompose
from torch_forge.graphs.index import Affine, Ranges, constant, reshape, variable
from torch_forge.graphs.parametrize import DraftPart, parametrize
from torch_forge.graphs.unlowerable import UnlowerableError
from torch_forge.records.problem import Graph, Node, Problem
from torch_forge.records.program import (
    CheckedIndex,
    IndexValue,
    Load,
    Lowered,
    NotLowered,
    Op,
    Reduce,
    Scan,
    Statement,
    Store,
)
from torch_forge.records.tensors import TensorSpec

Value = str | int | float | bool
"""Name of a program value, or a literal."""
ROW = ("row",)


def lower(problem: Problem) -> Lowered | NotLowered:
    """The loop form of a problem, or why no template can compute it."""
    try:
        return _lower(decompose(problem.graph))
    except (CaptureError, UnlowerableError) as reason:
        return NotLowered((str(reason),))


def _lower(graph: Graph) -> Lowered:
    for spec in (*graph.inputs, *graph.output_specs):
        if spec.numel == 0:
            raise UnlowerableError("a tensor is empty")
    for ref in graph.outputs:
        if ref.startswith("%i"):
            raise UnlowerableError("an output is an input as it is")
        if not _dense(graph.spec(ref)):
            raise UnlowerableError("an output overlaps itself or has gaps")
    domain = _row_domain(graph)
    parts = _row_parts(graph, domain) if domain else _pointwise_parts(graph)
    return parametrize(graph, parts, kind="row" if domain else "pointwise")


@dataclass(frozen=True)
class RowDomain:
    """The shape over which a row program runs and the dimensions that make a row."""

    shape: tuple[int, ...]
    dims: tuple[int, ...]

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple(d for d in range(len(self.shape)) if d not in self.dims)

    @property
    def length(self) -> int:
        return math.prod(self.shape[d] for d in self.dims)


def _row_domain(graph: Graph) -> RowDomain | None:
    """From the first reduction or scan that the outputs need; None for a pointwise graph."""
    for node in graph.nodes:
        dims = lower_reductions.row_dims(graph, node)
        if dims is not None:
            return RowDomain(graph.spec(node.args[0]).shape, dims)
    return None


def _row_parts(graph: Graph, domain: RowDomain) -> list[DraftPart]:
    sizes = [domain.shape[d] for d in domain.kept]
    bounds = {("d", k): n for k, n in enumerate(sizes)} | {ROW: domain.length}
    builder = Builder(graph, Ranges(bounds), row_length=domain.length)
    outer = [_loop_variable(k, n) for k, n in enumerate(sizes)]
    row = builder.row_index([domain.shape[d] for d in domain.dims])
    base: list[Affine] = [constant(0)] * len(domain.shape)
    for d, i in (*zip(domain.kept, outer, strict=True), *zip(domain.dims, row, strict=True)):
        base[d] = i
    for position, ref in enumerate(graph.outputs):
        spec = graph.spec(ref)
        if spec.numel == math.prod(domain.shape):
            index = base if spec.shape == domain.shape else reshape(base, domain.shape, spec.shape, builder.ranges)
        elif spec.numel == math.prod(sizes):
            index = reshape(outer, sizes, spec.shape, builder.ranges)
        else:
            raise UnlowerableError(f"output {position} has neither one element per row nor the shape that is reduced")
        builder.store(position, spec, index)
    return [DraftPart(tuple(sizes), domain.length, tuple(builder.body))]


def _pointwise_parts(graph: Graph) -> list[DraftPart]:
    """One part per iteration space: outputs of equal shape and layout share one."""
    groups: dict[TensorSpec, list[int]] = {}
    for position, spec in enumerate(graph.output_specs):
        groups.setdefault(TensorSpec(spec.shape, spec.stride, "bool"), []).append(position)
    parts: list[DraftPart] = []
    names = 0
    for layout, positions in groups.items():
        # Loops follow the memory order of the output, whatever the order of its dimensions.
        order = sorted(range(len(layout.shape)), key=lambda d: (-layout.stride[d], d))
        sizes = [layout.shape[d] for d in order]
        builder = Builder(graph, Ranges({("d", k): n for k, n in enumerate(sizes)}), row_length=None, first_name=names)
        index = [constant(0)] * len(order)
        for k, d in enumerate(order):
            index[d] = _loop_variable(k, sizes[k])
        for position in positions:
            builder.store(position, graph.output_specs[position], index)
        names = builder.names
        parts.append(DraftPart(tuple(sizes), None, tuple(builder.body)))
    return parts


def _loop_variable(k: int, size: int) -> Affine:
    return variable("d", k) if size > 1 else constant(0)


def _dense(spec: TensorSpec) -> bool:
    step = 1
    for stride, size in sorted(zip(spec.stride, spec.shape, strict=True)):
        if size != 1:
            if stride != step:
                return False
            step *= size
    return True


@dataclass
class Builder:
    """Collects the statements of one part."""

    graph: Graph
    ranges: Ranges
    row_length: int | None
    first_name: int = 0
    body: list[Statement] = field(default_factory=list)
    mask: str | None = None
    """The condition under which values are being asked for; None: always."""
    _memo: dict[object, Value] = field(default_factory=dict)
    _consed: dict[object, str] = field(default_factory=dict)
    _named: int = 0

    @property
    def names(self) -> int:
        """How many names have been given, over all parts so far."""
        return self.first_name + self._named

    def value(self, ref: str, index: Sequence[Affine]) -> Value:
        """The tensor behind ``ref`` at ``index``."""
        key = (ref, tuple(index), self.mask)
        if key not in self._memo:
            self._memo[key] = self._compute(ref, tuple(index))
        return self._memo[key]

    def _compute(self, ref: str, index: tuple[Affine, ...]) -> Value:
        name, _, output = ref[1:].partition(".")
        if name[0] == "i":
            return self.load(int(name[1:]), self.graph.spec(ref), index)
        node = self.graph.nodes[int(name[1:])]
        handler = lower_ops.HANDLERS.get(node.op)
        if handler is None:
            raise UnlowerableError(f"{node.op} has no template")
        return handler(self, node, int(output or 0), index)

    def at(self, value: object, shape: Sequence[int], index: Sequence[Affine]) -> Value:
        """An operand, tensor or literal, at an index of the broadcast shape."""
        if isinstance(value, str) and value.startswith("%"):
            own = self.graph.spec(value).shape
            tail = list(index)[len(shape) - len(own) :]
            return self.value(value, [constant(0) if n == 1 else i for n, i in zip(own, tail, strict=True)])
        assert isinstance(value, (bool, int, float)), value
        return value

    def load(self, position: int, spec: TensorSpec, index: Sequence[Affine]) -> str:
        address = _address(spec, index)
        return self._emit(("load", position, address, self.mask), lambda n: Load(n, position, address, self.mask))

    def op(self, fn: str, *args: Value, dtype: str, compute: str) -> str:
        return self._emit(
            ("op", fn, args, tuple(map(type, args)), dtype, compute), lambda n: Op(n, fn, args, dtype, compute)
        )

    def index_value(self, index: Affine | tuple[str, ...]) -> str:
        return self._emit(("index", index), lambda n: IndexValue(n, index))

    def checked_index(self, arg: Value, size: int, *, wrap: bool) -> Affine:
        """An integer value as an index into a dimension of this size."""
        if not isinstance(arg, str):
            return constant(int(arg) + (size if wrap and arg < 0 else 0))
        return variable("v", self._emit(("checked", arg, size, wrap), lambda n: CheckedIndex(n, arg, constant(size), wrap)))

    def reduce(self, fn: str, arg: Value, compute: str) -> str:
        if self.mask is not None:
            raise UnlowerableError("a reduction of part of a concatenation")
        name = self.named(arg, compute)
        return self._emit(("reduce", fn, name, compute), lambda n: Reduce(n, fn, name, compute))

    def scan(self, fn: str, arg: Value, dtype: str, compute: str) -> str:
        name = self.named(arg, compute)
        return self._emit(("scan", fn, name, dtype), lambda n: Scan(n, fn, name, dtype, compute))

    def row_index(self, sizes: Sequence[int]) -> tuple[Affine, ...]:
        """The row variable as an index over dimensions whose sizes multiply to the row length."""
        if self.row_length is None or math.prod(sizes) != self.row_length:
            raise UnlowerableError("reductions of different lengths")
        return reshape([variable("row") if self.row_length > 1 else constant(0)], [self.row_length], sizes, self.ranges)

    def row_count(self, dtype: str) -> str:
        """The row length as a floating-point value."""
        return self.op("cast", self.index_value(("rowsize",)), dtype=dtype, compute="int64")

    def store(self, position: int, spec: TensorSpec, index: Sequence[Affine]) -> None:
        name = self.named(self.value(self.graph.outputs[position], index), spec.dtype)
        self.body.append(Store(len(self.graph.inputs) + position, _address(spec, index), name))

    def named(self, value: Value, dtype: str) -> str:
        return value if isinstance(value, str) else self.op("cast", value, dtype=dtype, compute=dtype)

    def _emit(self, key: object, make: object) -> str:
        if key not in self._consed:
            name = f"v{self.names}"
            self._named += 1
            self._consed[key] = name
            self.body.append(make(name))  # type: ignore[operator]
        return self._consed[key]


def _address(spec: TensorSpec, index: Sequence[Affine]) -> Affine:
    total = constant(0)
    for i, n, stride in zip(index, spec.shape, spec.stride, strict=True):
        total = total + i * stride if n > 1 else total
    return total


# Imported for the handlers that they register.
_HANDLER_MODULES = (lower_ops, lower_views, lower_reductions)

__all__ = ["Builder", "Node", "RowDomain", "Value", "lower"]
