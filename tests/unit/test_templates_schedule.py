"""Stages of row programs: what runs when, and what is kept."""

from __future__ import annotations

import pytest

from tests.support import programs
from torch_forge.generation.templates.cuda_plan import Launch, row_launches
from torch_forge.generation.templates.schedule import Keeping, Schedule, live, name_of, schedule, unrounded
from torch_forge.records.program import Load, Op, Part, Reduce, Scan, Store

KEEP_DEAR = Keeping(across_passes=True, worth=lambda cost, loads: cost >= 10)
KEEP_NOTHING = Keeping(across_passes=False, worth=lambda cost, loads: False)


def plan(case: programs.Case, keeping: Keeping = KEEP_DEAR) -> Schedule:
    part = case.lowered.program.parts[0]
    found = schedule(part, tuple(t.dtype for t in case.lowered.program.tensors), keeping)
    assert found is not None
    return found


def names(stage) -> list[str]:
    return [name_of(s) or "store" for s in stage.body]


def test_softmax_keeps_the_exponentials():
    stages = plan(programs.softmax(2, 8)).stages
    assert [names(s) for s in stages] == [["v0"], ["v0", "v2", "v3"], ["v5", "store"]]
    assert [s.keeps for s in stages] == [(), ("v3",), ()]
    assert stages[2].reads == ("v3",)
    assert [[r.name for r in s.reduces] for s in stages] == [["v1"], ["v4"], []]


def test_without_memory_everything_is_computed_again():
    stages = plan(programs.softmax(2, 8), KEEP_NOTHING).stages
    assert names(stages[2]) == ["v0", "v2", "v3", "v5", "store"]


def test_residual_is_stored_as_soon_as_it_is_known():
    stages = plan(programs.add_layer_norm(2, 8)).stages
    assert names(stages[0]) == ["v0", "v1", "v2", "store"]
    assert [name_of(s) for s in stages[1].row_body] == ["v5"]


def test_per_row_results_come_last():
    found = plan(programs.logsumexp(2, 8))
    assert [name_of(s) for s in found.row_end] == ["v5", "v6", None]


def test_scan_splits_a_pass_into_phases():
    stages = plan(programs.cumsum_normalised(2, 8)).stages
    assert [s.position for s in stages] == [(0, 0), (1, 0), (1, 1), (2, 0)]
    assert [s.name for s in stages[1].scans] == ["v4"]
    assert stages[2].reads == ("v4",)
    assert stages[3].reads == ("v4",)


def test_a_scan_needed_in_a_later_pass_cannot_be_streamed():
    case = programs.cumsum_normalised(2, 8)
    assert schedule(case.lowered.program.parts[0], ("float32", "float32"), KEEP_NOTHING) is None


def test_independent_reductions_share_a_stage():
    (stage,) = plan(programs.row_any(2, 8)).stages
    assert [r.name for r in stage.reduces] == ["v1", "v3"]


def test_dead_statements_go():
    load, store = Load("x", 0, ("row",)), Store(1, ("row",), "x")
    assert live((load, Op("y", "exp", ("x",), "float32", "float32"), store)) == (load, store)


@pytest.mark.parametrize(("second_use", "expected"), [(False, {"y"}), (True, set())], ids=["only stored", "used again"])
def test_rounding_is_left_to_the_store(second_use, expected):
    body = [Load("x", 0, ("row",)), Op("y", "mul", ("x", "x"), "bfloat16", "float32"), Store(1, ("row",), "y")]
    body += [Reduce("r", "sum", "y", "float32"), Store(2, ("d", 0), "r")] if second_use else []
    assert unrounded(tuple(body), ("bfloat16", "bfloat16", "float32")) == expected


def test_a_scan_of_a_scan():
    body = (
        Load("x", 0, ("row",)), Scan("a", "sum", "x", "float32", "float32"), Scan("b", "sum", "a", "float32", "float32"),
        Store(1, ("row",), "b"),
    )  # fmt: skip
    found = schedule(Part(("p0",), "p1", body), ("float32", "float32"), KEEP_NOTHING)
    assert found is not None
    assert [s.position for s in found.stages] == [(0, 0), (0, 1), (0, 2)]


ROWS = {
    "bf16, 4096": (4096, [8], 6),
    "f32, 32768": (32768, [4], 4),
    "short": (64, [8], 4),
    "odd": (1003, [], 4),
    "one": (1, [], 4),
    "empty": (0, [], 4),
}


@pytest.mark.parametrize(("n", "widths", "live_bytes"), ROWS.values(), ids=ROWS)
def test_launches_cover_the_row_within_the_registers(n, widths, live_bytes):
    found = row_launches(n, widths, live_bytes, rows=4096, units=132)
    assert 1 <= len(found) <= 6
    assert found[0].width == 1
    assert all(launch.width in widths for launch in found[1:]) or not widths
    for launch in found:
        assert launch.threads * launch.width * launch.vectors >= n
        assert launch.width * launch.vectors * live_bytes <= (256 if launch.threads <= 512 else 128)
        assert launch.threads * launch.rows <= 1024
        assert (launch.threads * launch.rows) % 32 == 0


def test_a_row_that_does_not_fit_has_no_launch():
    assert row_launches(1 << 20, [8], 4, rows=8, units=132) == []


def test_rows_of_a_warp_share_a_block():
    assert Launch(8, 8, 1, 16) in row_launches(64, [8], 4, rows=4096, units=132)
