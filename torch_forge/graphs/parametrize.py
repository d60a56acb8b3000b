"""Draft loops with literal sizes and strides to a ``Program`` whose sizes and strides are parameters.

Adjacent loops that every access walks as one are merged first, so a contiguous tensor of any rank becomes
one loop. Then each size, stride, offset and divisor gets a parameter: the program that remains is the same for
every shape of the class.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from torch_forge.graphs.index import Affine, Atom, constant, variable
from torch_forge.records.problem import Graph
from torch_forge.records.program import (
    CheckedIndex,
    Index,
    IndexValue,
    Load,
    Lowered,
    Part,
    Program,
    Statement,
    Store,
    Tensor,
)


@dataclass(frozen=True)
class DraftPart:
    """A part with literal sizes; ``index`` fields of its statements are ``Affine``."""

    sizes: tuple[int, ...]
    row: int | None
    body: tuple[Statement, ...]


def parametrize(graph: Graph, drafts: Sequence[DraftPart], *, kind: str) -> Lowered:
    """The program and the parameter values of this workload."""
    tensors = tuple(Tensor("in", k, s.dtype) for k, s in enumerate(graph.inputs)) + tuple(
        Tensor("out", k, s.dtype) for k, s in enumerate(graph.output_specs)
    )
    params = _Params()
    parts = tuple(_part(_collapse(draft), number, params) for number, draft in enumerate(drafts))
    return Lowered(Program(kind, tensors, tuple(params.names), parts), tuple(params.values))


def _collapse(draft: DraftPart) -> DraftPart:
    """Merge neighbouring loops while every access allows it, and drop loops of size 1."""
    sizes = list(draft.sizes)
    body = draft.body
    k = 0
    while k < len(sizes) - 1:
        if sizes[k] == 1 or sizes[k + 1] == 1 or all(_mergeable(e, k, sizes[k + 1]) for e in _indices(body)):
            body = tuple(_map(s, lambda e, k=k: _merge(e, k, sizes)) for s in body)  # type: ignore[misc]
            sizes[k : k + 2] = [sizes[k] * sizes[k + 1]]
        else:
            k += 1
    return DraftPart(tuple(sizes) or (1,), draft.row, body)


def _mergeable(e: Affine, k: int, inner: int) -> bool:
    a, b = ("d", k), ("d", k + 1)
    return not e.nested(a) and not e.nested(b) and e.coefficient(a) == e.coefficient(b) * inner


def _merge(e: Affine, k: int, sizes: Sequence[int]) -> Affine:
    """Loops k and k+1 become loop k; loops above move down by one."""
    keep_first = sizes[k + 1] == 1

    def moved(atom: Atom) -> Affine | None:
        if atom[0] in ("//", "%"):
            return variable(atom[0], substitute(atom[1]), atom[2])
        if atom[0] != "d" or atom[1] < k:
            return variable(*atom)
        if atom[1] == k:
            return variable("d", k) if keep_first else None
        if atom[1] == k + 1:
            return None if keep_first else variable("d", k)
        return variable("d", atom[1] - 1)

    def substitute(e: Affine) -> Affine:
        total = constant(e.const)
        for atom, c in e.terms:
            new = moved(atom)
            total = total if new is None else total + new * c
        return total

    return substitute(e)


def _indices(body: Sequence[Statement]) -> list[Affine]:
    return [s.index for s in body if isinstance(s, (Load, Store, IndexValue)) and isinstance(s.index, Affine)]


def _map(s: Statement, fn: object) -> Statement:
    if isinstance(s, (Load, Store, IndexValue)) and isinstance(s.index, Affine):
        return replace(s, index=fn(s.index))  # type: ignore[operator]
    return s


@dataclass
class _Params:
    """Parameters in order of first use; one per role, not per value, so that the program is the same at other sizes."""

    names: list[str] = field(default_factory=list)
    values: list[int] = field(default_factory=list)
    _by_role: dict[Hashable, str] = field(default_factory=dict)

    def name(self, role: Hashable, value: int) -> str:
        key = (role, value)
        if key not in self._by_role:
            self._by_role[key] = f"p{len(self.names)}"
            self.names.append(self._by_role[key])
            self.values.append(value)
        return self._by_role[key]


def _part(draft: DraftPart, number: int, params: _Params) -> Part:
    outer = tuple(params.name(("size", number, k), n) for k, n in enumerate(draft.sizes))
    row = None if draft.row is None else params.name(("row", number), draft.row)
    body = tuple(_statement(s, row, params) for s in draft.body)
    return Part(outer, row, body)


def _statement(s: Statement, row: str | None, params: _Params) -> Statement:
    if isinstance(s, (Load, Store)):
        return replace(s, index=_index(s.index, ("tensor", s.tensor), params))
    if isinstance(s, IndexValue):
        if isinstance(s.index, Affine):
            return replace(s, index=_index(s.index, ("value",), params))
        return replace(s, index=("p", row))
    if isinstance(s, CheckedIndex):
        return replace(s, size=("p", params.name(("extent", s.arg), s.size.const)))
    return s


def _index(e: Affine, role: Hashable, params: _Params) -> Index:
    terms: list[Index] = []
    for atom, c in e.terms:
        inner = _atom(atom, params)
        terms.append(inner if c == 1 else ("*", inner, ("p", params.name((role, _shape_of(atom)), c))))
    if e.const or not terms:
        terms.append(("p", params.name((role, "offset"), e.const)) if e.const else 0)
    return terms[0] if len(terms) == 1 else ("+", *terms)


def _atom(atom: Atom, params: _Params) -> Index:
    if atom[0] in ("//", "%"):
        return (atom[0], _index(atom[1], ("inner",), params), ("p", params.name(("divisor",), atom[2])))
    return atom


def _shape_of(atom: Atom) -> str:
    return repr(atom if atom[0] not in ("//", "%") else atom[0])
