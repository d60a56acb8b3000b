"""Records survive JSON whole, and nothing else is taken for one."""

from __future__ import annotations

import math
from typing import Any

import pytest

from torch_forge.errors import RecordError
from torch_forge.records import codec
from torch_forge.records.outcomes import Crashed, Passed, Verdict
from torch_forge.records.problem import Graph, Node, Problem
from torch_forge.records.tensors import contiguous

X = contiguous((4, 8), "float32")


def problem(*args: Any) -> Problem:
    return Problem(
        "fill", Graph((X,), (Node("aten.masked_fill.Scalar", ("%i0", *args), (("dtype", "@float32"),), (X,)),), ("%v0",))
    )


@pytest.mark.parametrize(
    "args",
    [
        pytest.param((1, 2.5, None, True, "text"), id="plain"),
        pytest.param(((1, (2, 3)), ()), id="nested"),
        pytest.param((math.inf, (-math.inf, 1.0)), id="infinities in free-form arguments"),
    ],
)
def test_round_trip(args: tuple[Any, ...]) -> None:
    before = problem(*args)
    after = codec.loads(Problem, codec.dumps(before))
    assert after == before
    assert after.workload == before.workload


def test_nan_comes_back_as_nan() -> None:
    after = codec.loads(Problem, codec.dumps(problem(math.nan)))
    assert math.isnan(after.graph.nodes[0].args[1])


def test_unions_are_told_apart_by_class() -> None:
    for verdict in (Passed(()), Crashed(11, -11, "log")):
        assert codec.from_plain(Verdict, codec.to_plain(verdict)) == verdict


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("{", id="no JSON"),
        pytest.param("[]", id="a list"),
        pytest.param('{"record": "Crashed", "signal": 1, "exit_status": 2}', id="a field missing"),
        pytest.param('{"record": "Crashed", "signal": 1, "exit_status": 2, "log": "", "more": 1}', id="a field too many"),
        pytest.param('{"record": "Crashed", "signal": true, "exit_status": 2, "log": ""}', id="a bool for an int"),
        pytest.param('{"record": "Passed", "cases": []}', id="another record"),
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(RecordError):
        codec.loads(Crashed, text)
