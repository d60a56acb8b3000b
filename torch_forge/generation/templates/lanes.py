"""What neighbouring elements share, so that it is computed and loaded once for all of them.

Along the vectorised loop variable a value is the same for the whole row, the same for a group of neighbours, or
different for each. Groups come from two places: quotients (``weight[row // HW]``) and positions compared with a
bound (``row < 64`` in a concatenation), which change only at multiples of the group's width.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from torch_forge.generation.templates.schedule import name_of, uses
from torch_forge.generation.templates.terms import Along, Conditions, Pattern, Step, terms
from torch_forge.records.program import CheckedIndex, Index, IndexValue, Load, Op, Part, Reduce, Statement, Store

PERIOD = "row_period"
"""Name of the index value that numbers the periods of a row, where the loop is cut at each (``periodic``)."""


CROSSING = 16
"""Shortest dimensions for which crossing them in another order pays: a cache line's worth of elements."""


class Level(enum.IntEnum):
    """How often a value changes."""

    ROW = 0
    GROUP = 1
    LANE = 2


@dataclass
class Lanes:
    """The analysis of one body."""

    level: dict[str, Level] = field(default_factory=dict)
    pattern: dict[int, Pattern] = field(default_factory=dict)
    """Of each load's and store's index, by ``id`` of the statement."""
    multiples: list[Index] = field(default_factory=list)
    """What must be a multiple of the width at launch for all this to hold."""
    bounds: list[tuple[Index, Index]] = field(default_factory=list)
    """(position, bound) of the comparisons that were found constant over a group."""

    @property
    def contiguous(self) -> int:
        """How many loads and stores move neighbouring elements."""
        return sum(p.step is Step.ONE for p in self.pattern.values())


def idle_positions(body: Iterable[Statement], lanes: Lanes, elsewhere: Iterable[str]) -> set[str]:
    """Positions that no lane looks at, since only comparisons made once per group use them.

    elsewhere: values with users outside the body.
    """
    statements = tuple(body)
    seen = set(elsewhere)
    for s in statements:
        name = name_of(s)
        if name is None or lanes.level[name] is Level.LANE:
            seen |= uses(s)
    return {s.name for s in statements if isinstance(s, IndexValue) and s.name not in seen}


def analyse(body: Iterable[Statement], along: Along, *, any_bound: bool = False) -> Lanes:
    """Levels and access patterns along ``along.variable``.

    any_bound: a comparison with any bound counts as constant over a group (the caller cuts the loop at ``bounds``).
    """
    return _Analysis(along, any_bound).run(tuple(body))


class _Analysis:
    def __init__(self, along: Along, any_bound: bool) -> None:
        self.along, self.any_bound = along, any_bound
        self.lanes = Lanes()
        self.positions: dict[str, Index] = {}

    def run(self, body: tuple[Statement, ...]) -> Lanes:
        for s in body:
            self.along = replace(self.along, varying=frozenset(n for n, v in self.lanes.level.items() if v is Level.LANE))
            if isinstance(s, (Load, Store)):
                self.lanes.pattern[id(s)] = self._settled(self.along.pattern(s.index))
            name = name_of(s)
            if name is not None:
                self.lanes.level[name] = self._level(s)
        return self.lanes

    def _settled(self, pattern: Pattern) -> Pattern:
        self.lanes.multiples += [m for m in pattern.multiples if m not in self.lanes.multiples]
        return pattern

    def _level(self, s: Statement) -> Level:
        below = max((self.lanes.level.get(u, Level.ROW) for u in uses(s)), default=Level.ROW)
        match s:
            case IndexValue(name=name) if name == PERIOD:
                return Level.GROUP
            case IndexValue(name=name, index=index):
                pattern = self.along.pattern(index)
                self.positions[name] = index
                return max(below, self._of(pattern, index))
            case Load(index=index):
                return max(below, self._of(self.lanes.pattern[id(s)], index))
            case CheckedIndex(size=size):
                return max(below, self._of(self.along.pattern(size), size))
            case Op():
                return Level.GROUP if below is Level.LANE and self._constant(s) else below
            case Reduce():
                return Level.ROW
            case _:
                return Level.LANE

    def _of(self, pattern: Pattern, index: Index) -> Level:
        if pattern.step is not Step.NONE:
            return Level.LANE
        self._settled(pattern)
        return Level.GROUP if self.along.touches(index) else Level.ROW

    def _constant(self, op: Op) -> bool:
        """Whether a comparison of a position with a bound cannot change within a group."""
        if op.fn not in ("lt", "ge", "gt", "le"):
            return False
        a, b = (self._index(arg) for arg in op.args)
        if a is None or b is None:
            return False
        moving, bound = (a, b) if self.along.touches(a) else (b, a)
        if op.fn in ("gt", "le") if moving is a else op.fn in ("lt", "ge"):
            bound = ("+", bound, 1)
        if self.along.touches(bound):
            return False
        if self.any_bound:
            parts = [t for t in terms(moving) if t.atoms == (self.along.variable,) and t.coefficient == 1 and not t.params]
            rest = [t for t in terms(moving) if any(self.along.touches(atom) for atom in t.atoms)]
            if len(parts) != 1 or len(rest) != 1:
                return False
            self.lanes.bounds.append((moving, bound))
            return True
        if self.along.width == 1:
            return False
        pattern, conditions = self.along.pattern(moving), Conditions(self.along)
        for term in terms(bound):
            conditions.require(term)
        if pattern.step is not Step.ONE or conditions.broken:
            return False
        self._settled(Pattern(Step.ONE, (*pattern.multiples, *conditions.open)))
        return True

    def _index(self, arg: str | float | bool) -> Index | None:
        if isinstance(arg, str):
            return self.positions.get(arg)
        return int(arg) if isinstance(arg, int) else None


def crossing(part: Part, size: Callable[[str], int]) -> int | None:
    """The outer dimension along which some tensor is contiguous that the row variable strides through, if both are long.

    Reading such a tensor row by row would use one element of every cache line fetched; the templates then run through
    this dimension inside a short stretch of the row. ``part`` in row form.
    """
    if part.row is None or size(part.row) < CROSSING:
        return None
    for s in part.body:
        if not isinstance(s, Load) or Along(("row",), 1, {}).pattern(s.index).step is not Step.OTHER:
            continue
        for k, param in enumerate(part.outer):
            if size(param) >= CROSSING and Along(("d", k), 1, {}).pattern(s.index).step is Step.ONE:
                return k
    return None
