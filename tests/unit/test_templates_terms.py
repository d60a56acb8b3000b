"""Index expressions: multiplied out, and how they behave along the vectorised variable."""

from __future__ import annotations

import pytest

from torch_forge.generation.templates.expressions import Names, index_text
from torch_forge.generation.templates.lanes import Level, analyse
from torch_forge.generation.templates.terms import Along, Pattern, Step, Term, divisors, terms
from torch_forge.records.program import CheckedIndex, IndexValue, Load, Op, Store

ROW = ("row",)
D0 = ("d", 0)
P1 = ("p", "p1")
P2 = ("p", "p2")


def test_terms_multiply_sums_out():
    index = ("*", ("+", D0, 2), P1)
    assert terms(index) == [Term(1, ("p1",), (D0,)), Term(2, ("p1",), ())]


PATTERNS = {
    "contiguous, stride known and a multiple": (("+", ("*", D0, P1), ROW), 8, {"p1": 64}, Pattern(Step.ONE)),
    "contiguous, stride known, no multiple": (("+", ("*", D0, P1), ROW), 8, {"p1": 63}, Pattern(Step.OTHER)),
    "contiguous, stride unknown": (("+", ("*", D0, P1), ROW), 8, {}, Pattern(Step.ONE, (P1,))),
    "two unknown factors": (("+", ("*", D0, P1, P2), ROW), 4, {"p2": 3}, Pattern(Step.ONE, (("*", 3, P1),))),
    "known factor settles it": (("+", ("*", D0, P1, P2), ROW), 4, {"p2": 8}, Pattern(Step.ONE)),
    "offset that breaks alignment": (("+", ROW, 1), 4, {}, Pattern(Step.OTHER)),
    "offset that keeps it": (("+", ROW, -8), 4, {}, Pattern(Step.ONE)),
    "strided": (("*", ROW, P1), 4, {}, Pattern(Step.OTHER)),
    "twice": (("+", ROW, ROW), 4, {}, Pattern(Step.OTHER)),
    "independent": (("*", D0, P1), 4, {}, Pattern(Step.NONE)),
    "quotient by a multiple": (("//", ROW, P1), 8, {"p1": 64}, Pattern(Step.NONE)),
    "quotient by another number": (("//", ROW, P1), 8, {"p1": 50}, Pattern(Step.OTHER)),
    "quotient by a run-time number": (("//", ROW, P1), 8, {}, Pattern(Step.NONE, (P1,))),
    "remainder by a multiple": (("%", ROW, P1), 8, {"p1": 64}, Pattern(Step.ONE)),
    "quotient of the whole row": (("//", ROW, P1), 1, {"p1": 64}, Pattern(Step.OTHER)),
    "gathered row": (("+", ("*", ("v", "i"), P1), ROW), 4, {"p1": 12}, Pattern(Step.ONE)),
}


@pytest.mark.parametrize(("index", "width", "statics", "expected"), PATTERNS.values(), ids=PATTERNS)
def test_pattern(index, width, statics, expected):
    assert Along(ROW, width, statics).pattern(index) == expected


def test_a_value_that_varies_makes_an_index_vary():
    assert Along(ROW, 4, {}, frozenset({"i"})).pattern(("v", "i")) == Pattern(Step.OTHER)


COMPARISONS = {
    "bound is a multiple": ("lt", 64, 8, Level.GROUP),
    "bound is none": ("lt", 60, 8, Level.LANE),
    "le moves the bound by one": ("le", 63, 8, Level.GROUP),
    "ge": ("ge", 8, 8, Level.GROUP),
    "gt": ("gt", 8, 8, Level.LANE),
    "eq never": ("eq", 8, 8, Level.LANE),
    "width one has no groups": ("lt", 64, 1, Level.LANE),
}


@pytest.mark.parametrize(("fn", "bound", "width", "level"), COMPARISONS.values(), ids=COMPARISONS)
def test_comparing_a_position_with_a_bound(fn, bound, width, level):
    body = [IndexValue("i", ROW), Op("m", fn, ("i", bound), "bool", "int64")]
    assert analyse(body, Along(ROW, width, {})).level["m"] is level


def test_levels_of_a_gathered_row():
    body = [
        Load("k", 0, D0), CheckedIndex("i", "k", P2, True), Load("x", 1, ("+", ("*", ("v", "i"), P1), ROW)),
        Load("w", 2, ("//", ROW, 16)), Op("y", "mul", ("x", "w"), "float32", "float32"),
        Store(3, ("+", ("*", D0, P1), ROW), "y"),
    ]  # fmt: skip
    found = analyse(body, Along(ROW, 4, {}))
    assert found.level == {"k": Level.ROW, "i": Level.ROW, "x": Level.LANE, "w": Level.GROUP, "y": Level.LANE}
    assert found.multiples == [P1]
    assert found.contiguous == 2


TEXTS = {
    "sum of products": (("+", ("*", D0, P1), ROW), "d0 * p1 + row"),
    "negative offset": (("+", ROW, ("*", -1, P1)), "row - p1"),
    "negative literal": (("+", ROW, -64), "row - 64"),
    "product of a sum": (("*", ("+", D0, 1), P1), "(d0 + 1) * p1"),
    "quotient in a product": (("*", ("//", ROW, P1), P2), "(row / p1) * p2"),
    "remainder of a sum": (("%", ("+", ROW, D0), P1), "(row + d0) % p1"),
    "neutral elements": (("+", 0, ("*", 1, ROW)), "row"),
}


@pytest.mark.parametrize(("index", "text"), TEXTS.values(), ids=TEXTS)
def test_index_text(index, text):
    assert index_text(index, {ROW: "row", D0: "d0"}, Names(), "int64_t") == text


def test_divisors():
    assert divisors(("+", ("//", ROW, P1), ("%", ("//", D0, 4), ("*", P2, 2)))) == {"p1", "p2"}
