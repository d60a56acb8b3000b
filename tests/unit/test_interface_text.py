"""The printed contract: true to the problem's own tensors, with a file to start from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.llm import make_problem
from torch_forge.generation.interface_text import graph_lines, interface, spec_text
from torch_forge.generation.naive_source import example_source
from torch_forge.records.problem import Graph, Node, Problem
from torch_forge.records.tensors import DTYPES, TensorSpec, contiguous

INCLUDE = Path(__file__).resolve().parents[2] / "torch_forge" / "include"
X = contiguous((4, 6), "float32")
ODD = TensorSpec((6, 4), (1, 6), "bfloat16")
EVERY_DTYPE = Problem(
    "every_dtype",
    Graph(
        tuple(contiguous((3,), d) for d in DTYPES),
        tuple(Node("aten.neg.default", (f"%i{k}",), (), (contiguous((3,), d),)) for k, d in enumerate(DTYPES)),
        tuple(f"%v{k}" for k in range(len(DTYPES))),
    ),
)
NESTED = Problem(
    "nested",
    Graph(
        (X, ODD),
        (
            Node("aten.split.Tensor", ("%i0", 2), (), (contiguous((2, 6), "float32"),) * 2),
            Node("aten.cat.default", (["%v0.1", "%v0.0"],), (), (X,)),
            Node("aten.gelu.default", ("%v1",), (("approximate", "tanh"),), (X,)),
            Node("aten._to_copy.default", ("%i1",), (("dtype", "@float32"),), (contiguous((6, 4), "float32"),)),
        ),
        ("%v2", "%v3"),
    ),
)
EXPRESSION = Problem(
    "expression",
    Graph(
        (X, X),
        (
            Node("aten.mul.Tensor", ("%i0", "%i1"), (), (X,)),
            Node("aten.add.Tensor", ("%v0", 0.5), (), (X,)),
            Node("aten.sigmoid.default", ("%v1",), (), (X,)),
            Node("aten.neg.default", ("%v2",), (), (X,)),
        ),
        ("%v3", "%i0"),
    ),
)
SCALARS = Problem("scalar", Graph((contiguous((), "float32"),), (), ("%i0",)))
PROBLEMS = [make_problem(), EVERY_DTYPE, NESTED, EXPRESSION, SCALARS]


def test_the_graph_reads_as_python():
    assert graph_lines(NESTED.graph) == [
        "  def problem(i0, i1):",
        "      v0 = aten.split.Tensor(i0, 2)  # float32[2, 6], float32[2, 6]",
        "      v1 = aten.cat.default([v0[1], v0[0]])  # float32[4, 6]",
        "      v2 = aten.gelu.default(v1, approximate='tanh')  # float32[4, 6]",
        "      v3 = aten._to_copy.default(i1, dtype=torch.float32)  # float32[6, 4]",
        "      return v2, v3",
    ]


def test_strides_are_named_where_they_matter():
    assert spec_text(ODD) == "bfloat16[6, 4] strides [1, 6]"


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.name)
def test_the_interface_holds_contract_operands_and_example(problem: Problem, backend: str):
    text = interface(problem, backend)
    assert (INCLUDE / "forge.h").read_text().rstrip() in text
    assert example_source(problem, backend).rstrip() in text
    sizes = [n for s in problem.graph.inputs for n in s.shape]
    assert (f"dims[0..{len(sizes) - 1}]: {sizes}" if sizes else "dims: empty") in text
