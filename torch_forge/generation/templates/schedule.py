"""When each statement of a row program runs: stages over the row, and what is kept between them.

A value is known after some number of *passes* over the row (each reduction ends one) and, within a pass, after
some number of *phases* (each scan ends one). Statements with the same (pass, phase) form a stage, one loop over
the row. A stage that needs an earlier per-element value either computes it again or, where that is dear, reads what
the earlier stage kept; ``Keeping`` says which of the two and whether it is possible at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from torch_forge.generation.templates.terms import atoms, values_in
from torch_forge.records.program import CheckedIndex, IndexValue, Load, Op, Part, Reduce, Scan, Statement, Store
from torch_forge.records.tensors import DTYPES

Position = tuple[int, int]
"""(pass, phase)."""
S = TypeVar("S", bound=Statement)

COSTS: Mapping[str, int] = {
    "div": 6, "floor_div": 20, "trunc_div": 7, "remainder": 20, "fmod": 20, "pow": 40, "sqrt": 6,
    "rsqrt": 6, "reciprocal": 6,
    "exp": 10, "exp2": 9, "expm1": 12, "log": 12, "log2": 12, "log10": 12, "log1p": 20, "tanh": 18, "erf": 18, "sigmoid": 18,
    "sin": 20, "cos": 20, "tan": 30, "sinh": 20, "cosh": 20, "asin": 20, "acos": 20, "atan": 20, "atan2": 30, "erfc": 30,
}  # fmt: skip
"""Rough cost of a function in additions; anything else costs one."""


def uses(statement: Statement) -> set[str]:
    """Names of the values that a statement needs."""
    match statement:
        case Load(index=index, mask=mask):
            return values_in(index) | ({mask} if mask else set())
        case Op(args=args):
            return {a for a in args if isinstance(a, str)}
        case IndexValue(index=index):
            return values_in(index)
        case CheckedIndex(arg=arg, size=size):
            return {arg} | values_in(size)
        case Store(index=index, value=value):
            return {value} | values_in(index)
        case _:
            return {statement.arg}


def name_of(statement: Statement) -> str | None:
    """The value a statement defines; None for a store."""
    return None if isinstance(statement, Store) else statement.name


def live(body: Iterable[Statement]) -> tuple[Statement, ...]:
    """The statements that some store or bounds check depends on, in order."""
    kept: list[Statement] = []
    needed: set[str] = set()
    for statement in reversed(tuple(body)):
        if isinstance(statement, (Store, CheckedIndex)) or name_of(statement) in needed:
            kept.append(statement)
            needed |= uses(statement)
    return tuple(reversed(kept))


def cost(statement: Statement, tensor_dtypes: tuple[str, ...]) -> int:
    """Cost of one execution in additions; conversions to and from the 16-bit floats included."""
    if isinstance(statement, Load):
        return {"float16": 4, "bfloat16": 2}.get(tensor_dtypes[statement.tensor], 1)
    if isinstance(statement, Op):
        rounding = {"float16": 6, "bfloat16": 3}.get(statement.dtype, 0)
        wide = 3 if statement.compute == "float64" and statement.fn in COSTS else 1
        return wide * COSTS.get(statement.fn, 1) + rounding
    return 1


def value_dtypes(body: Iterable[Statement], tensor_dtypes: tuple[str, ...]) -> dict[str, str]:
    """Element type of every value."""
    found: dict[str, str] = {}
    for s in body:
        match s:
            case Load():
                found[s.name] = tensor_dtypes[s.tensor]
            case Op() | Scan():
                found[s.name] = s.dtype
            case IndexValue() | CheckedIndex():
                found[s.name] = "int64"
            case Reduce():
                found[s.name] = reduce_dtype(s)
            case _:
                pass
    return found


def reduce_dtype(reduce: Reduce) -> str:
    """Element type of a reduction's result; a 16-bit compute type means float32."""
    if reduce.fn in ("any", "all"):
        return "bool"
    if reduce.fn in ("argmax", "argmin"):
        return "int64"
    return reduce.compute


def unrounded(body: tuple[Statement, ...], tensor_dtypes: tuple[str, ...]) -> frozenset[str]:
    """16-bit float results whose every use is a store into a tensor of that type: the store rounds them."""
    candidates = {
        s.name: s.dtype
        for s in body
        if isinstance(s, Op) and DTYPES[s.dtype].nbytes == 2 and DTYPES[s.dtype].kind == "float"
    }
    for s in body:
        for name in uses(s) & set(candidates):
            if not (
                isinstance(s, Store)
                and s.value == name
                and tensor_dtypes[s.tensor] == candidates[name]
                and name not in values_in(s.index)
            ):
                del candidates[name]
    return frozenset(candidates)


@dataclass(frozen=True)
class Keeping:
    """A template's memory between stages."""

    across_passes: bool
    """Whether a value can be kept until a later pass, not only until a later phase of the same one."""
    worth: Callable[[int, int], bool]
    """Given the cost of computing a value again and how many loads that takes: whether to keep it."""


@dataclass(frozen=True)
class Stage:
    """One loop over the row."""

    position: Position
    row_body: tuple[Statement, ...]
    """Per-row statements to run before it."""
    body: tuple[Statement, ...]
    """Per-element statements and stores, in order; values in ``reads`` are not computed here."""
    reads: tuple[str, ...]
    """Values that an earlier stage kept."""
    keeps: tuple[str, ...]
    """Values of this stage that a later one reads."""
    reduces: tuple[Reduce, ...]
    scans: tuple[Scan, ...]


@dataclass(frozen=True)
class Schedule:
    """The whole row, in order."""

    stages: tuple[Stage, ...]
    row_end: tuple[Statement, ...]
    """Per-row statements after the last stage."""

    @property
    def passes(self) -> int:
        return 1 + max((s.position[0] for s in self.stages), default=0)


def schedule(part: Part, tensor_dtypes: tuple[str, ...], keeping: Keeping) -> Schedule | None:
    """Stages of a row part; None if a scan's result is needed in a later pass and cannot be kept."""
    return _Scheduler(live(part.body), tensor_dtypes, keeping).run()


class _Scheduler:
    def __init__(self, body: tuple[Statement, ...], tensor_dtypes: tuple[str, ...], keeping: Keeping) -> None:
        self.body, self.dtypes, self.keeping = body, tensor_dtypes, keeping
        self.definition = {name: s for s in body if (name := name_of(s)) is not None}
        self.order = {id(s): i for i, s in enumerate(body)}
        self.per_row: set[str] = set()
        self.position: dict[str, Position] = {}
        self.computed: dict[str, Position] = {}
        self.kept: dict[Position, list[str]] = {}
        self.possible = True
        for s in body:
            self._place(s)

    def _place(self, s: Statement) -> None:
        name = name_of(s)
        if name is None:
            return
        at = self._at(s)
        if isinstance(s, Reduce):
            self.per_row.add(name)
            self.position[name] = (at[0] + 1, 0)
        elif isinstance(s, Scan):
            self.position[name] = (at[0], at[1] + 1)
        else:
            self.position[name] = at
            if is_per_row(s, self.per_row):
                self.per_row.add(name)

    def _at(self, s: Statement) -> Position:
        """Where all that a statement needs is known."""
        return max((self.position[u] for u in uses(s)), default=(0, 0))

    def run(self) -> Schedule | None:
        sinks: dict[Position, list[Statement]] = {}
        for s in self.body:
            if (
                isinstance(s, (Reduce, Scan))
                or (isinstance(s, Store) and not is_per_row(s, self.per_row))
                or (isinstance(s, CheckedIndex) and s.name not in self.per_row)
            ):
                sinks.setdefault(self._at(s), []).append(s)
        drafts = [(at, self._stage(at, sinks[at])) for at in sorted(sinks)]
        if not self.possible:
            return None
        row_waiting = [s for s in self.body if not isinstance(s, Reduce) and is_per_row(s, self.per_row)]
        stages = []
        for at, (body, reads) in drafts:
            now = [s for s in row_waiting if self._at(s) <= at]
            row_waiting = [s for s in row_waiting if self._at(s) > at]
            stages.append(
                Stage(
                    at, tuple(now), tuple(s for s in body if not isinstance(s, (Reduce, Scan))), tuple(reads),
                    tuple(self.kept.get(at, ())), _only(body, Reduce), _only(body, Scan),
                )
            )  # fmt: skip
        return Schedule(tuple(stages), tuple(row_waiting))

    def _stage(self, at: Position, sinks: list[Statement]) -> tuple[list[Statement], list[str]]:
        """The sinks with all per-element statements that they need here, in order, and what is read from before."""
        chosen: dict[int, Statement] = {}
        reads: list[str] = []
        waiting = list(sinks)
        while waiting:
            s = waiting.pop()
            if self.order[id(s)] in chosen:
                continue
            chosen[self.order[id(s)]] = s
            for name in uses(s):
                if name in self.per_row or name in reads:
                    continue
                if self._read(name, at):
                    reads.append(name)
                else:
                    waiting.append(self.definition[name])
        body = [chosen[i] for i in sorted(chosen)]
        for s in body:
            defined = name_of(s)
            if defined is not None and not isinstance(s, (Reduce, Scan)):
                self.computed.setdefault(defined, at)
        return body, reads

    def _read(self, name: str, at: Position) -> bool:
        """Whether this stage takes the value from an earlier one; notes there that it is to be kept."""
        definition = self.definition[name]
        if isinstance(definition, Scan):
            home = self.position[name]
            self.possible &= self.keeping.across_passes or home[0] == at[0]
            return True
        home = self.computed.get(name, at)
        if home == at or not (self.keeping.across_passes or home[0] == at[0]) or isinstance(definition, Load):
            return False
        if not self.keeping.worth(*self._again(name)):
            return False
        kept = self.kept.setdefault(home, [])
        if name not in kept:
            kept.append(name)
        return True

    def _again(self, name: str) -> tuple[int, int]:
        """Cost of computing a value again from memory and per-row values, and how many loads that takes."""
        seen: set[str] = set()
        waiting, total, loads = [name], 0, 0
        while waiting:
            n = waiting.pop()
            if n in seen or n in self.per_row:
                continue
            seen.add(n)
            s = self.definition[n]
            total += cost(s, self.dtypes)
            loads += isinstance(s, Load)
            waiting += [] if isinstance(s, Scan) else uses(s)
        return total, loads


def is_per_row(s: Statement, per_row: set[str]) -> bool:
    """Whether a statement runs once per row: it uses neither the row variable nor a per-element value."""
    if isinstance(s, (Reduce, Scan)) or not uses(s) <= per_row:
        return False
    expressions = [s.size] if isinstance(s, CheckedIndex) else [s.index] if isinstance(s, (Load, IndexValue, Store)) else []
    return not any(a == ("row",) for e in expressions for a in atoms(e))


def _only(body: list[Statement], kind: type[S]) -> tuple[S, ...]:
    return tuple(s for s in body if isinstance(s, kind))
