"""A killed tuning run loses at most the trial it was writing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.entries import make_entry, make_files, make_key, make_result, make_trial, workload_id
from torch_forge.caching.journal import JOURNALS, Journal, journal_path
from torch_forge.caching.layers import Cache
from torch_forge.settings import Settings

KEY = make_key()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return journal_path(tmp_path / "cache", KEY, workload_id())


def fill(path: Path, count: int) -> Journal:
    journal = Journal(path)
    for number in range(count):
        journal.append(make_trial(number))
    return journal


def test_finished_trials_come_back_in_order(path: Path):
    assert fill(path, 3).trials == Journal(path).trials == tuple(make_trial(n) for n in range(3))
    assert set(Journal(path).finished) == {make_trial(n).candidate.digest for n in range(3)}


def test_a_journal_nobody_wrote_is_empty_and_makes_no_file(path: Path):
    assert Journal(path).trials == ()
    assert not path.exists()


@pytest.mark.parametrize("cut", [1, 2, 100, 500], ids=["newline", "last byte", "end", "middle"])
def test_a_truncated_last_line_costs_that_trial_only(path: Path, cut: int):
    fill(path, 3)
    path.write_bytes(path.read_bytes()[:-cut])
    left = 3 if cut == 1 else 2
    journal = Journal(path)
    assert len(journal.trials) == left
    journal.append(make_trial(9))
    assert Journal(path).trials == (*(make_trial(n) for n in range(left)), make_trial(9))


def test_foreign_lines_are_skipped(path: Path):
    fill(path, 1)
    path.write_bytes(b"\xff\xfe\n" + b"[" * 100_000 + b'\n{"record": "Trial"}\n' + path.read_bytes())
    assert Journal(path).trials == (make_trial(0),)


def test_a_linked_journal_is_neither_read_nor_written(path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    fill(path, 1)
    target = tmp_path / "elsewhere"
    path.rename(target)
    before = target.read_bytes()
    path.symlink_to(target)
    journal = Journal(path)
    assert journal.trials == ()
    journal.append(make_trial(1))
    journal.append(make_trial(2))
    assert target.read_bytes() == before
    assert len(journal.trials) == 2
    assert len(caplog.records) == 1, "warned once"


def test_another_compiler_is_another_journal(path: Path, tmp_path: Path):
    assert journal_path(tmp_path / "cache", make_key(compiler="clang 17"), workload_id()) != path


@pytest.mark.parametrize("decide", ["put", "keep"])
def test_the_journal_goes_when_the_decision_is_stored(tmp_path: Path, decide: str):
    cache = Cache(Settings(cache_dir=tmp_path / "cache"))
    cache.journal(KEY, workload_id()).append(make_trial())
    cache.journal(KEY, workload_id(7)).append(make_trial())
    if decide == "put":
        cache.put(make_entry(), make_files())
    else:
        cache.keep(KEY, workload_id(), make_result(verdict="kept"))
    (left,) = (tmp_path / "cache" / JOURNALS).rglob("*.jsonl")
    assert workload_id(7) in left.name
