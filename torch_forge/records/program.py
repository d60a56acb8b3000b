"""A program: the loop form of a problem, from which the templates write source.

An iteration space of ``outer`` dimensions and, in a row program, one ``row`` dimension; a list of
statements in single-assignment form; tensors addressed by index expressions. Sizes and strides are
*parameters* (``p0``, ``p1`` ...), so one program serves every shape of its class; their values for one exact
workload are a ``Binding``.

A statement that depends on the row variable runs per element, one that does not runs once per row. A
``Reduce`` turns per-element values into a per-row value; so values have a *depth*, the number of passes over
the row before they are known, and a template decides what to keep in registers between passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch_forge.records.codec import digest
from torch_forge.records.problem import frozen_args

Index = Any
"""An integer expression as nested tuples (lists in JSON):

    int                      a literal
    ("p", name)              a parameter
    ("d", k)                 the k-th outer loop variable
    ("row",)                 the row variable
    ("v", name)              an integer value of the program (indirect addressing); already wrapped and checked
    ("+", a, b, ...)  ("*", a, b, ...)  ("//", a, b)  ("%", a, b)     operands never negative in // and %
"""


@dataclass(frozen=True)
class Tensor:
    """One tensor argument of the kernel."""

    role: str
    """``in`` or ``out``."""
    position: int
    """Index into ``in[]`` or ``out[]`` of the entry point."""
    dtype: str


@dataclass(frozen=True)
class Load:
    """``name = tensor[index]``, in elements from its data pointer; not executed where ``mask`` is false (value then 0)."""

    name: str
    tensor: int
    """Index into ``Program.tensors``."""
    index: Index
    mask: str | None = None
    """Name of a boolean value, or None for always."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", frozen_args(self.index))


@dataclass(frozen=True)
class Op:
    """``name = round_to(dtype, fn(args converted to compute))``.

    ``dtype`` is the eager result type: a bfloat16 value is kept in a float register, rounded to bfloat16.
    ``compute`` is the type in which ``fn`` works (float32 for the 16-bit floats, as eager does).
    """

    name: str
    fn: str
    """A key of ``FUNCTIONS``."""
    args: tuple[str | int | float | bool, ...]
    """Names of values, or literals."""
    dtype: str
    compute: str


@dataclass(frozen=True)
class IndexValue:
    """``name = expression`` as an int64 value (``arange``, positions, masks by position)."""

    name: str
    index: Index

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", frozen_args(self.index))


@dataclass(frozen=True)
class CheckedIndex:
    """``name = arg wrapped from the end if negative`` as int64; outside ``[0, size)`` the launch reports an index error."""

    name: str
    arg: str
    size: Index
    wrap: bool
    """Whether negative indices count from the end (``x[i]``) or are errors (embedding)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", frozen_args(self.size))


@dataclass(frozen=True)
class Reduce:
    """``name = fold of arg over the row``, accumulated in ``compute``, not rounded further. Per-row value."""

    name: str
    fn: str
    """``sum``, ``prod``, ``max``, ``min`` (NaN wins), ``any``, ``all``, ``argmax``, ``argmin`` (first index; NaN wins;
    int64)."""
    arg: str
    compute: str


@dataclass(frozen=True)
class Scan:
    """``name = inclusive prefix fold of arg along the row``, rounded to ``dtype``. Per-element value of the next depth."""

    name: str
    fn: str
    """``sum`` or ``prod``."""
    arg: str
    dtype: str
    compute: str


@dataclass(frozen=True)
class Store:
    """``tensor[index] = value``; per row if neither index nor value depends on the row variable."""

    tensor: int
    index: Index
    value: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", frozen_args(self.index))


Statement = Load | Op | IndexValue | CheckedIndex | Reduce | Scan | Store

FUNCTIONS: dict[str, int] = {
    # arithmetic
    "add": 2, "sub": 2, "mul": 2, "div": 2, "trunc_div": 2, "floor_div": 2, "remainder": 2, "fmod": 2, "pow": 2,
    "neg": 1, "abs": 1, "sign": 1, "reciprocal": 1, "square": 1, "sqrt": 1, "rsqrt": 1, "fma": 3,
    # transcendental
    "exp": 1, "exp2": 1, "expm1": 1, "log": 1, "log2": 1, "log10": 1, "log1p": 1, "sin": 1, "cos": 1, "tan": 1,
    "tanh": 1, "sinh": 1, "cosh": 1, "asin": 1, "acos": 1, "atan": 1, "atan2": 2, "erf": 1, "erfc": 1, "sigmoid": 1,
    # rounding
    "floor": 1, "ceil": 1, "trunc": 1, "round": 1,
    # comparison and choice; max and min return NaN if either is NaN; the comparisons' dtype is bool
    "max": 2, "min": 2, "lt": 2, "le": 2, "gt": 2, "ge": 2, "eq": 2, "ne": 2, "where": 3, "isnan": 1, "isinf": 1,
    # logic and bits
    "and": 2, "or": 2, "xor": 2, "not": 1, "bit_and": 2, "bit_or": 2, "bit_xor": 2, "bit_not": 1, "shl": 2, "shr": 2,
    # conversion only
    "cast": 1,
}  # fmt: skip
"""Scalar functions and their arity. ``round`` is half to even; ``remainder`` has the divisor's sign; bool is 0 or 1."""


@dataclass(frozen=True)
class Part:
    """One iteration space and what happens in it. Parts of a program are independent of one another."""

    outer: tuple[str, ...]
    """Parameters that are the sizes of ``("d", 0)``, ``("d", 1)`` ... ; the last varies fastest."""
    row: str | None
    """Parameter that is the row length; None in a pointwise part."""
    body: tuple[Statement, ...]
    """In order of definition; names are unique over the whole program."""


@dataclass(frozen=True)
class Program:
    """The whole kernel: ``pointwise`` (every part without a row) or ``row`` (one part with one)."""

    kind: str
    tensors: tuple[Tensor, ...]
    params: tuple[str, ...]
    """All parameters, in the order of ``dims[]`` at the entry point."""
    parts: tuple[Part, ...]

    @cached_property
    def digest(self) -> str:
        """Identity of the loop form; free of sizes and strides."""
        return digest(self)


@dataclass(frozen=True)
class Lowered:
    """A program with the parameter values of the workload that it was lowered from."""

    program: Program
    values: tuple[int, ...]
    """One per ``program.params``."""

    def value(self, param: str) -> int:
        """The value of one parameter."""
        return self.values[self.program.params.index(param)]


@dataclass(frozen=True)
class NotLowered:
    """No template program computes this graph; why, one line each."""

    reasons: tuple[str, ...]
