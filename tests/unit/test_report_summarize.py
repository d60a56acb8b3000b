from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sessions import model_check, region_result, session_report
from torch_forge.records.outcomes import ErrorStats
from torch_forge.records.profile import LeftAlone
from torch_forge.report.summarize import Row, summarize

EXACT = ErrorStats(0.0, 0.0, ())
KEPT = region_result(name="gelu", verdict="kept", forge_us=50.0, eager_us=48.0, why="eager is as fast: 0.96x", origin="")
FAILED = region_result(name="norm", verdict="failed", forge_us=None, why="no right candidate: 8 mismatch", origin="")


def test_row():
    report = session_report(region_result(), check=model_check())
    assert summarize(report, modules={"softmax": "LlamaAttention"}).rows == (
        Row(
            region="softmax",
            module="LlamaAttention",
            share=0.4,
            eager_us=212.0,
            inductor_us=218.0,
            forge_us=84.0,
            bound_us=63.0,
            percent_of_bound=75.0,
            verdict="installed",
            why="2.5x eager, 2.6x torch.compile",
            details="4 calls per run; 8 candidates (7 passed, 1 not built) in 9.5 s; kernel by template; "
            "error 1.00x eager's own",
        ),
    )


@pytest.mark.parametrize(
    ("regions", "changes", "headline"),
    [
        (
            [region_result(), KEPT],
            {"check": model_check()},
            "1 of 2 regions replaced. The model is 1.60x as fast as before.",
        ),
        ([KEPT, FAILED], {}, "0 of 2 regions replaced (1 kept eager, 1 failed). The model runs as it did before."),
        ([], {}, "0 regions replaced: nothing in this model was worth a kernel. It runs as it did before."),
        (
            [region_result()],
            {"check": model_check(accepted=False, speedup=0.97, why="slower as a whole: 0.97x")},
            "0 of 1 region replaced: installed, measured as a whole and undone (slower as a whole: 0.97x).",
        ),
    ],
    ids=["installed", "nothing installed", "nothing found", "undone"],
)
def test_headline(regions, changes, headline):
    assert summarize(session_report(*regions, **changes)).headline == headline


def test_nothing_replaced_comes_with_a_reason_for_each_region():
    left = (LeftAlone("aten.addmm", 0.55, "matrix product: the vendor's library is at its bound"),)
    data = summarize(session_report(KEPT, FAILED, left=left))
    assert [(r.verdict, r.why) for r in data.rows] == [
        ("kept eager", "eager is as fast: 0.96x"),
        ("failed", "no right candidate: 8 mismatch"),
    ]
    assert data.left == (("aten.addmm", 0.55, "matrix product: the vendor's library is at its bound"),)
    assert data.model == ()


def test_whole_model_with_interval_and_error_against_the_policy():
    assert dict(summarize(session_report(region_result(), check=model_check())).model) == {
        "before": "8.000 ms",
        "after": "5.000 ms",
        "speedup": "1.60x (95 % interval 1.55x to 1.64x)",
        "forged kernels": "4 calls in one run",
        "output error": "1.02x eager's own (policy eager-equivalent)",
        "decision": "accepted: faster as a whole",
    }


def test_undone_regions_are_not_called_installed():
    data = summarize(session_report(region_result(), KEPT, check=model_check(accepted=False)))
    assert [r.verdict for r in data.rows] == ["undone", "kept eager"]
    assert data.advice == ()


def test_advice_names_the_cache_and_the_way_back():
    advice = summarize(session_report(region_result(), check=model_check()), cache_dir=Path("/c")).advice
    assert "/c" in advice[0]
    assert "torch-forge cache info" in advice[0]
    assert "revert()" in advice[1]


def test_small_leftovers_are_counted_and_an_early_end_is_said():
    left = (LeftAlone("aten.addmm", 0.5, "why"), LeftAlone("aten.t", 0.002, "view"), LeftAlone("aten.view", 0.001, "view"))
    data = summarize(session_report(left=left, notes=("no compiler",), complete=False))
    assert [what for what, _, _ in data.left] == ["aten.addmm"]
    assert data.notes == (
        "no compiler",
        "2 smaller items left alone, together 0.3% of the time",
        "stopped before every region was tried; what was found by then is kept",
    )


@pytest.mark.parametrize(
    ("changes", "details"),
    [
        ({"from_cache": True, "calls": 1}, "1 call per run; from the cache; kernel by template; error 1.00x eager's own"),
        ({"outcomes": {}, "origin": "", "error": None}, "4 calls per run"),
        (
            {"outcomes": {"passed": 1}, "origin": "llm", "error": EXACT, "eager_error": EXACT},
            "4 calls per run; 1 candidate (1 passed) in 9.5 s; kernel by llm; error none, as eager",
        ),
    ],
    ids=["cached", "untried", "exact"],
)
def test_details(changes, details):
    assert summarize(session_report(region_result(**changes))).rows[0].details == details


def test_no_bound_no_percentage():
    assert summarize(session_report(region_result(bound_us=0.0))).rows[0].percent_of_bound is None


def test_same_twice():
    report = session_report(region_result(), KEPT, check=model_check())
    assert summarize(report) == summarize(report)
