"""Integer index expressions with known ranges, simplified as they are built.

An expression is affine: a constant plus coefficients times atoms. An atom is a loop variable, an indirect index, or
a quotient or remainder that would not simplify. Since every variable's range is known, most reshapes vanish:
``(i * 64 + j) // 64`` is ``i`` when ``j < 64``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Atom = tuple[Any, ...]
"""``("d", k)``, ``("row",)``, ``("v", name)``, ``("//", Affine, int)`` or ``("%", Affine, int)``."""


@dataclass(frozen=True)
class Affine:
    """``const + sum(coefficient * atom)``; terms sorted, coefficients not zero."""

    terms: tuple[tuple[Atom, int], ...] = ()
    const: int = 0

    def __add__(self, other: Affine | int) -> Affine:
        other = constant(other) if isinstance(other, int) else other
        merged = dict(self.terms)
        for atom, coefficient in other.terms:
            merged[atom] = merged.get(atom, 0) + coefficient
        return _affine(merged, self.const + other.const)

    def __mul__(self, factor: int) -> Affine:
        return _affine({a: c * factor for a, c in self.terms}, self.const * factor)

    def coefficient(self, atom: Atom) -> int:
        """Of one atom; 0 if absent."""
        return dict(self.terms).get(atom, 0)

    def mentions(self, atom: Atom) -> bool:
        """Whether the atom occurs anywhere, also inside a quotient or remainder."""
        return any(a == atom or (a[0] in ("//", "%") and a[1].mentions(atom)) for a, _ in self.terms)

    def nested(self, atom: Atom) -> bool:
        """Whether the atom occurs inside a quotient or remainder."""
        return any(a[0] in ("//", "%") and a[1].mentions(atom) for a, _ in self.terms)


def constant(value: int) -> Affine:
    """A literal."""
    return Affine((), value)


def variable(*atom: Any) -> Affine:
    """One atom with coefficient 1."""
    return Affine(((atom, 1),), 0)


def _affine(terms: Mapping[Atom, int], const: int) -> Affine:
    terms, const = _recombine(dict(terms), const)
    return Affine(tuple(sorted(((a, c) for a, c in terms.items() if c), key=repr)), const)


def _recombine(terms: dict[Atom, int], const: int) -> tuple[dict[Atom, int], int]:
    """``c*k*(e // c) + k*(e % c)`` is ``k*e``: what a split and a merge leave behind."""
    for atom, c in list(terms.items()):
        if atom[0] != "%" or not c:
            continue
        partner = ("//", atom[1], atom[2])
        if terms.get(partner) == c * atom[2]:
            del terms[atom], terms[partner]
            const += c * atom[1].const
            for inner, k in atom[1].terms:
                terms[inner] = terms.get(inner, 0) + c * k
            return _recombine(terms, const)
    return terms, const


@dataclass(frozen=True)
class Ranges:
    """Exclusive upper bounds of the loop variables; every variable starts at 0."""

    bounds: Mapping[Atom, int]

    def limits(self, e: Affine) -> tuple[int, int] | None:
        """Smallest and largest value, or None if an indirect index occurs."""
        low = high = e.const
        for atom, c in e.terms:
            top = self._top(atom)
            if top is None:
                return None
            low, high = (low, high + c * top) if c > 0 else (low + c * top, high)
        return low, high

    def _top(self, atom: Atom) -> int | None:
        if atom[0] == "%":
            return int(atom[2]) - 1
        if atom[0] == "//":
            inner = self.limits(atom[1])
            return None if inner is None else inner[1] // int(atom[2])
        bound = self.bounds.get(atom)
        return None if bound is None else max(bound - 1, 0)

    def floordiv(self, e: Affine, divisor: int) -> Affine:
        """``e // divisor`` for ``e >= 0``."""
        quotient, rest = self._split(e, divisor)
        if rest is None:
            return variable("//", e, divisor) if divisor != 1 else e
        return quotient + rest[0]

    def mod(self, e: Affine, divisor: int) -> Affine:
        """``e % divisor`` for ``e >= 0``."""
        if divisor == 1:
            return constant(0)
        _, rest = self._split(e, divisor)
        return variable("%", e, divisor) if rest is None else rest[1]

    def _split(self, e: Affine, divisor: int) -> tuple[Affine, tuple[Affine, Affine] | None]:
        """The multiples of the divisor taken out; of what is left, quotient and remainder if they are simple."""
        multiple = _affine({a: c // divisor for a, c in e.terms if c % divisor == 0}, e.const // divisor)
        rest = _affine({a: c for a, c in e.terms if c % divisor}, e.const % divisor)
        limits = self.limits(rest)
        if limits is not None and limits[0] >= 0 and limits[1] < divisor:
            return multiple, (constant(0), rest)
        if not rest.terms or limits is None or limits[0] < 0:
            return multiple, None
        return multiple, (variable("//", rest, divisor), variable("%", rest, divisor))


def linearize(index: Sequence[Affine], shape: Sequence[int]) -> Affine:
    """Row-major position of a multi-index."""
    position = constant(0)
    for i, n in zip(index, shape, strict=True):
        position = position * n + i
    return position


def delinearize(position: Affine, shape: Sequence[int], ranges: Ranges) -> tuple[Affine, ...]:
    """The multi-index at a row-major position."""
    index: list[Affine] = []
    for n in reversed(shape[1:]):
        index.append(ranges.mod(position, n))
        position = ranges.floordiv(position, n)
    return (*([position] if shape else []), *reversed(index))


def reshape(index: Sequence[Affine], old: Sequence[int], new: Sequence[int], ranges: Ranges) -> tuple[Affine, ...]:
    """The index into a tensor of shape ``new`` of the element at ``index`` in shape ``old``, group by group.

    Dimensions are matched into the smallest groups of equal size, so that a dimension that a reshape does not touch
    keeps its own variable.
    """
    result: list[Affine] = []
    a = b = 0
    while a < len(old) or b < len(new):
        start_a, start_b = a, b
        size_a = size_b = 1
        while True:
            if size_a == size_b and (a > start_a or b > start_b) and (a > start_a) == (b > start_b):
                break
            if (size_a <= size_b and a < len(old)) or b >= len(new):
                if a >= len(old):
                    break
                size_a *= old[a]
                a += 1
            else:
                size_b *= new[b]
                b += 1
        while a < len(old) and old[a] == 1 and b == len(new):
            a += 1
        group = linearize(index[start_a:a], old[start_a:a])
        result.extend(delinearize(group, new[start_b:b], ranges))
    return tuple(result)
