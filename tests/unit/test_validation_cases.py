"""Cases: a recipe per distribution and size, and a lint that refuses those that could not tell wrong from right."""

from __future__ import annotations

import json

import pytest
import torch

from tests.support.kernels import f32, problem
from tests.support.threads import one_thread  # noqa: F401 (a fixture)
from torch_forge.records.codec import from_plain, to_plain
from torch_forge.records.tensors import contiguous
from torch_forge.validation.cases import Case, case, full_cases, quick_cases, resized_cases
from torch_forge.validation.expected import IMPOSTORS, prepare

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
SOFTMAX = problem(lambda x: torch.softmax(x, -1), f32(8, 48))


def test_a_case_survives_json():
    recipe = quick_cases(SOFTMAX, 3)[-1]
    assert from_plain(Case, json.loads(json.dumps(to_plain(recipe)))) == recipe


def test_names_are_unique_and_seeds_differ():
    cases = [*quick_cases(SOFTMAX, 3), *full_cases(SOFTMAX, 3, sums=True), *resized_cases(SOFTMAX, 3)]
    assert len({c.name for c in cases}) == len({c.seed for c in cases}) == len(cases)
    assert {c.seed for c in cases}.isdisjoint(c.seed for c in quick_cases(SOFTMAX, 4))


def test_resized_problems_have_other_sizes():
    shapes = {c.problem.graph.inputs[0].shape for c in resized_cases(SOFTMAX, 3)}
    assert {(8, 47), (8, 49), (9, 48), (7, 48), (1, 48)} <= shapes
    assert (8, 48) not in shapes


@pytest.mark.parametrize("distribution", ["normal", "shifted", "special"])
def test_every_impostor_fails_on_the_quick_cases_of_a_softmax(distribution: str):
    ready = prepare(case(SOFTMAX, distribution, 1), CPU)
    assert ready is not None
    assert ready.told_apart == set(IMPOSTORS)


@pytest.mark.parametrize(
    ("fn", "distribution", "accepted"),
    [
        (lambda x: torch.softmax(x, -1), "constant_rows", {"the mean", "a lower precision", "an older result"}),
        (lambda x: x.abs() * 0.0, "normal", {"zeros", "the mean", "a lower precision", "an older result"}),
        (torch.relu, "small_ints", {"a lower precision"}),
        (torch.clone, "normal", {"an input"}),
        (lambda x: x.sum(), "special", set(IMPOSTORS) - {"zeros", "the mean", "an input"}),
    ],
    ids=["all rows alike", "all zero", "exact in any precision", "a copy", "all NaN"],
)
def test_a_case_says_which_wrong_results_it_would_accept(fn, distribution: str, accepted: set[str]):
    ready = prepare(case(problem(fn, f32(16, 32)), distribution, 1), CPU)
    assert ready is not None
    assert set(IMPOSTORS) - ready.told_apart == accepted


def test_inputs_that_eager_refuses_make_no_case():
    of = problem(lambda x, i: x[i], f32(10), contiguous((4,), "int64"))
    assert prepare(case(of, "normal", 1), CPU) is not None
    by_zero = problem(torch.remainder, contiguous((4096,), "int32"), contiguous((4096,), "int32"))
    assert prepare(case(by_zero, "normal", 1), CPU) is None
