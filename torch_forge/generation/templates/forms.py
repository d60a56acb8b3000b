"""Parts rewritten into the form a template wants: the last dimension as the row, quotients of the row numbered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch_forge.generation.templates.lanes import PERIOD
from torch_forge.generation.templates.terms import ROW, atoms, substitute
from torch_forge.records.program import CheckedIndex, Index, IndexValue, Load, Part, Statement, Store


def row_form(part: Part) -> Part:
    """A pointwise part with its last outer dimension as the row; other parts as they are."""
    if part.row is not None or not part.outer:
        return part
    last: Index = ("d", len(part.outer) - 1)
    body = tuple(_with_index(s, lambda index: substitute(index, last, ROW)) for s in part.body)
    return Part(part.outer[:-1], part.outer[-1], body)


def periodic(part: Part) -> tuple[Part, Index | None]:
    """The part with ``row // q`` as one value, and q, if that is the only division of the row variable."""
    found = {e[2] for s in part.body for index in _index_of(s) for e in _divisions(index) if e[1] == ROW}
    if len(found) != 1 or any(a[0] != "p" for q in found for a in atoms(q)):
        return part, None
    q = next(iter(found))
    number: Index = ("v", PERIOD)

    def cut(index: Index) -> Index:
        index = substitute(index, ("//", ROW, q), number)
        return substitute(index, ("%", ROW, q), ("+", ROW, ("*", -1, q, number)))

    body = tuple(_with_index(s, cut) for s in part.body)
    return replace(part, body=(IndexValue(PERIOD, ("//", ROW, q)), *body)), q


def _divisions(index: Index) -> list[Index]:
    if isinstance(index, int) or index[0] in ("p", "d", "row", "v"):
        return []
    inner = [e for operand in index[1:] for e in _divisions(operand)]
    return [index, *inner] if index[0] in ("//", "%") else inner


def _index_of(s: Statement) -> tuple[Index, ...]:
    return (s.index,) if isinstance(s, (Load, Store, IndexValue)) else (s.size,) if isinstance(s, CheckedIndex) else ()


def _with_index(s: Statement, change: Callable[[Index], Index]) -> Statement:
    if isinstance(s, (Load, Store, IndexValue)):
        return replace(s, index=change(s.index))
    return replace(s, size=change(s.size)) if isinstance(s, CheckedIndex) else s
