"""Index expressions as sums of products, and what they do along one loop variable.

Whether a tensor can be read sixteen bytes at a time, and whether a value is the same for a whole vector, are
questions about one index expression and one variable: does it grow by exactly one, not at all, or otherwise?
The answer may hold only if some strides are multiples of the vector width; those are returned as conditions,
to be settled here where their values are compiled in and at launch where they are not.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch_forge.records.program import Index

ROW: Index = ("row",)
"""The row variable."""


@dataclass(frozen=True)
class Term:
    """``coefficient * params[0] * ... * atoms[0] * ...``"""

    coefficient: int
    params: tuple[str, ...]
    atoms: tuple[Index, ...]
    """Loop variables, values of the program, quotients and remainders."""


def terms(index: Index) -> list[Term]:
    """The expression multiplied out, like terms added up."""
    total: dict[tuple[tuple[str, ...], tuple[Index, ...]], int] = {}
    for term in _terms(index):
        key = (term.params, term.atoms)
        total[key] = total.get(key, 0) + term.coefficient
    return [Term(coefficient, *key) for key, coefficient in total.items() if coefficient]


def _terms(index: Index) -> list[Term]:
    if isinstance(index, int):
        return [Term(index, (), ())] if index else []
    match index[0]:
        case "p":
            return [Term(1, (index[1],), ())]
        case "+":
            return [t for operand in index[1:] for t in _terms(operand)]
        case "*":
            product = [Term(1, (), ())]
            for operand in index[1:]:
                product = [_times(a, b) for a in product for b in _terms(operand)]
            return product
        case _:
            return [Term(1, (), (index,))]


def _times(a: Term, b: Term) -> Term:
    return Term(a.coefficient * b.coefficient, tuple(sorted(a.params + b.params)), a.atoms + b.atoms)


def atoms(index: Index) -> Iterator[Index]:
    """Every leaf that is not a literal: parameters, loop variables, values."""
    if isinstance(index, int):
        return
    if index[0] in ("p", "d", "row", "v"):
        yield index
        return
    for operand in index[1:]:
        yield from atoms(operand)


def values_in(index: Index) -> set[str]:
    """Names of the program values that the expression uses."""
    return {a[1] for a in atoms(index) if a[0] == "v"}


def divisors(index: Index) -> set[str]:
    """Parameters that something is divided by."""
    if isinstance(index, int) or index[0] in ("p", "d", "row", "v"):
        return set()
    inner = {p for operand in index[1:] for p in divisors(operand)}
    return inner | {a[1] for a in atoms(index[2]) if a[0] == "p"} if index[0] in ("//", "%") else inner


def substitute(index: Index, old: Index, new: Index) -> Index:
    """``index`` with every ``old`` replaced by ``new``."""
    if index == old:
        return new
    if isinstance(index, int) or index[0] in ("p", "d", "row", "v"):
        return index
    return (index[0], *(substitute(operand, old, new) for operand in index[1:]))


class Step(enum.Enum):
    """What an expression does when the loop variable grows by one."""

    NONE = 0
    ONE = 1
    OTHER = 2


@dataclass(frozen=True)
class Pattern:
    """How an index behaves along a loop variable, in groups of ``width`` neighbours that start at a multiple of it."""

    step: Step
    multiples: tuple[Index, ...] = ()
    """Parameter expressions that must be multiples of the width for ``step`` to be true and the group to be aligned."""


OTHER = Pattern(Step.OTHER)


@dataclass(frozen=True)
class Along:
    """The question: along which variable, how wide, with which parameters known."""

    variable: Index
    """``("row",)`` or ``("d", k)``."""
    width: int
    """Elements in a group; 1 asks about the whole row, over which quotients and remainders are neither."""
    statics: Mapping[str, int]
    varying: frozenset[str] = frozenset()
    """Program values that differ between neighbours."""

    def pattern(self, index: Index) -> Pattern:
        """How ``index`` behaves."""
        if not self.touches(index):
            return Pattern(Step.NONE)
        steps, bases, conditions = 0, [], Conditions(self)
        for term in terms(index):
            moving = [a for a in term.atoms if self.touches(a)]
            inner = Pattern(Step.NONE) if not moving else self._atom(moving[0]) if len(moving) == 1 else OTHER
            if inner.step is Step.OTHER:
                return OTHER
            conditions.extend(inner.multiples)
            if inner.step is Step.NONE:
                bases.append(term)
                continue
            steps += 1
            if term.coefficient != 1 or term.params or len(term.atoms) != 1:
                return OTHER
        if steps == 0:
            return Pattern(Step.NONE, tuple(conditions.open))
        for term in bases:
            conditions.require(term)
        return OTHER if steps > 1 or conditions.broken else Pattern(Step.ONE, tuple(conditions.open))

    def touches(self, index: Index) -> bool:
        """Whether the expression can change along the variable."""
        return any(a == self.variable or (a[0] == "v" and a[1] in self.varying) for a in atoms(index))

    def _atom(self, atom: Index) -> Pattern:
        if atom == self.variable:
            return Pattern(Step.ONE)
        if atom[0] not in ("//", "%") or self.touches(atom[2]):
            return OTHER
        inner = self.pattern(atom[1])
        if inner.step is not Step.ONE:
            return inner if inner.step is Step.NONE else OTHER
        conditions = Conditions(self)
        conditions.extend(inner.multiples)
        for term in terms(atom[2]):
            conditions.require(term)
        if conditions.broken or self.width == 1:
            return OTHER
        return Pattern(Step.ONE if atom[0] == "%" else Step.NONE, tuple(conditions.open))


class Conditions:
    """Collects what must be a multiple of the width; settles what is known."""

    def __init__(self, along: Along) -> None:
        self._along = along
        self.open: list[Index] = []
        self.broken = False

    def require(self, term: Term) -> None:
        """The term must be a multiple of the width, whatever its variables are."""
        known = term.coefficient
        for p in term.params:
            known *= self._along.statics.get(p, 1)
        unknown = [p for p in term.params if p not in self._along.statics]
        if known % self._along.width == 0:
            return
        if not unknown:
            self.broken = True
            return
        factors: list[Index] = [("p", p) for p in unknown]
        self.extend([("*", known, *factors) if known != 1 or len(factors) > 1 else factors[0]])

    def extend(self, multiples: list[Index] | tuple[Index, ...]) -> None:
        self.open += [m for m in multiples if m not in self.open]
