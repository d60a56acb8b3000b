"""Which values an integer input of a graph may take: an embedding index must lie inside the table.

Test data is drawn from a seed, so it must be valid for every problem that can occur. The bound is found by
walking the graph backwards from the operations that index to the inputs their indices come from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch_forge.records.problem import REF, Graph, Node


@dataclass(frozen=True, slots=True)
class IndexRange:
    """Valid indices are ``0 .. size - 1``."""

    size: int
    wraps: bool
    """Whether ``-size .. -1`` are valid too (``x[i]``)."""
    ignore: int | None = None
    """A value outside the range that means "no index" (``ignore_index`` of a loss)."""


_PASSES = frozenset(
    f"aten.{name}"
    for name in (
        "view.default", "_unsafe_view.default", "reshape.default", "expand.default", "squeeze.default", "squeeze.dim",
        "squeeze.dims", "unsqueeze.default", "clone.default", "_to_copy.default", "alias.default", "permute.default",
        "transpose.int", "t.default", "slice.Tensor", "select.int", "where.self", "cat.default", "contiguous.default",
        "lift_fresh_copy.default", "flatten.using_ints", "detach.default", "where.ScalarOther",
    )
)  # fmt: skip
"""Operations whose result holds only elements of their arguments."""


_DIM_AND_INDEX = frozenset(
    {"gather", "index_select", "scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy", "index_fill"}
)
"""Packets called as ``op(self, dim, index, ...)``."""


def index_ranges(graph: Graph) -> tuple[IndexRange | None, ...]:
    """One entry per input; None for an input that never serves as an index."""
    limits: dict[str, IndexRange] = {}
    for position in reversed(range(len(graph.nodes))):
        node = graph.nodes[position]
        for ref, limit in (*_consumed(graph, node), *_passed_on(node, limits.get(f"{REF}v{position}"))):
            limits[ref] = _tighter(limits.get(ref), limit)
    ignored = _compared_with(graph)
    return tuple(_with_ignored(limits.get(f"{REF}i{k}"), ignored.get(f"{REF}i{k}")) for k in range(len(graph.inputs)))


def _consumed(graph: Graph, node: Node) -> Iterator[tuple[str, IndexRange]]:
    """The arguments that this operation uses as indices."""
    name, args = node.op.split(".")[1], node.args
    shape = graph.spec(args[0]).shape if args and _is_ref(args[0]) else ()
    if name == "embedding":
        yield args[1], IndexRange(shape[0], wraps=False)
    elif name in _DIM_AND_INDEX:
        if _is_ref(args[2]):
            yield args[2], IndexRange(shape[args[1]] if shape else 1, wraps=False)
    elif name in ("index", "index_put", "_unsafe_index", "_unsafe_index_put"):
        yield from ((ref, IndexRange(shape[d], wraps=True)) for d, ref in enumerate(args[1]) if _is_ref(ref))
    elif name == "take":
        yield args[1], IndexRange(graph.spec(args[0]).numel, wraps=True)
    elif name in ("nll_loss_forward", "nll_loss2d_forward", "nll_loss", "nll_loss_nd"):
        ignore = args[4] if len(args) > 4 else -100
        yield args[1], IndexRange(shape[1 if len(shape) > 1 else 0], wraps=False, ignore=ignore)
    elif name == "embedding_dense_backward":
        yield args[1], IndexRange(args[2], wraps=False)


def _passed_on(node: Node, limit: IndexRange | None) -> Iterator[tuple[str, IndexRange]]:
    if limit is None:
        return
    if node.op in _PASSES:
        yield from ((ref, limit) for ref in _refs(node.args))
    elif node.op in ("aten.add.Tensor", "aten.add.Scalar") and len(node.args) == 2:
        offsets = [a for a in node.args if type(a) is int]
        yield from ((ref, replace(limit, size=max(1, limit.size - sum(offsets)))) for ref in _refs(node.args))


def _compared_with(graph: Graph) -> dict[str, int]:
    """Values that an input is compared with: a decomposed loss says ``target != -100``."""
    compares = ("aten.ne.Scalar", "aten.eq.Scalar")
    return {n.args[0]: n.args[1] for n in graph.nodes if n.op in compares and _is_ref(n.args[0]) and type(n.args[1]) is int}


def _with_ignored(limit: IndexRange | None, ignored: int | None) -> IndexRange | None:
    if limit is None or ignored is None or 0 <= ignored < limit.size:
        return limit
    return replace(limit, ignore=ignored)


def _tighter(a: IndexRange | None, b: IndexRange) -> IndexRange:
    if a is None:
        return b
    return IndexRange(min(a.size, b.size), a.wraps and b.wraps, a.ignore if a.ignore is not None else b.ignore)


def _is_ref(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(REF)


def _refs(value: Any) -> Iterator[str]:
    if isinstance(value, tuple):
        for v in value:
            yield from _refs(v)
    elif _is_ref(value):
        yield value
