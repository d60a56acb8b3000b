"""What ``caching.store.Store`` promises, held against every store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.entries import make_entry, make_files, make_kept, make_key, workload_id
from tests.support.memory_store import MemoryStore
from torch_forge.caching.entry import Bad, StoredEntry
from torch_forge.caching.store import DirectoryStore, Store
from torch_forge.errors import CacheError, RecordError
from torch_forge.records.entry import entry_name

KEY = make_key()


@dataclass
class Sides:
    """A store, and where others put what it reads: itself, if it can be written."""

    store: Store
    writer: Store


def _private(root: Path) -> Sides:
    store = DirectoryStore(root)
    return Sides(store, store)


def _read_only(root: Path) -> Sides:
    writer = DirectoryStore(root, own=False)
    return Sides(DirectoryStore(root, label="shared", writable=False, own=False), writer)


def _memory(root: Path) -> Sides:
    store = MemoryStore()
    return Sides(store, store)


@pytest.fixture(params=[_private, _read_only, _memory], ids=["directory", "read-only directory", "memory"])
def sides(request: pytest.FixtureRequest, tmp_path: Path) -> Sides:
    return request.param(tmp_path / "cache")


def test_an_empty_store_has_nothing(sides: Sides):
    assert sides.store.names(KEY) == []
    for answer in (sides.store.read(KEY, "0-0"), sides.store.fetch(KEY, "0-0")):
        assert isinstance(answer, Bad)
        assert answer.gone


def test_what_was_put_is_found_and_equal(sides: Sides):
    put = sides.writer.put(make_entry(), make_files())
    assert isinstance(put, StoredEntry)
    (name,) = sides.store.names(KEY)
    assert name == entry_name(put.entry)
    assert sides.store.read(KEY, name) == put.entry
    assert sides.store.fetch(KEY, name) == put


def test_a_decision_is_found_and_equal(sides: Sides):
    put = sides.writer.put(make_kept(), {})
    (name,) = sides.store.names(KEY)
    assert put == make_kept()
    assert sides.store.read(KEY, name) == put
    assert sides.store.fetch(KEY, name) == put


def test_the_facts_are_those_of_the_bytes(sides: Sides):
    put = sides.writer.put(make_entry(), make_files("abc"))
    assert isinstance(put, StoredEntry)
    sizes = {name: len(data) for name, data in make_files("abc").items()}
    assert {name: facts.size_bytes for name, facts in put.entry.files.items()} == sizes


def test_a_file_may_be_given_by_its_path(sides: Sides, tmp_path: Path):
    (tmp_path / "built.so").write_bytes(make_files()["kernel.so"])
    assert sides.writer.put(make_entry(), {**make_files(), "kernel.so": tmp_path / "built.so"}) == sides.writer.put(
        make_entry(), make_files()
    )


def test_putting_an_equal_entry_again_changes_nothing(sides: Sides):
    first = sides.writer.put(make_entry(), make_files())
    assert sides.writer.put(make_entry(), make_files()) == first
    assert len(sides.store.names(KEY)) == 1


def test_entries_that_differ_lie_side_by_side(sides: Sides):
    for number in range(3):
        sides.writer.put(make_entry(workload_id(number)), make_files())
    sides.writer.put(make_entry(workload_id(0)), make_files("another library"))
    assert len(sides.store.names(KEY)) == 4


def test_another_problem_or_device_is_elsewhere(sides: Sides):
    sides.writer.put(make_entry(), make_files())
    assert sides.store.names(make_key(problem="cd34" * 4)) == []
    assert sides.store.names(make_key(device="cpu-avx2-64x-251g-1f3a5b")) == []
    assert len(sides.store.names(make_key(compiler="clang 17"))) == 1


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({**make_files(), "../evil.so": b""}, "unexpected file"),
        ({n: d for n, d in make_files().items() if n != "glue.cpp"}, r"no glue\.cpp"),
        ({n: d for n, d in make_files().items() if n != "glue.so"}, "only one of the two libraries"),
    ],
    ids=["foreign name", "no glue", "half the libraries"],
)
def test_a_malformed_entry_is_refused_and_leaves_nothing(sides: Sides, files: dict[str, bytes], says: str):
    with pytest.raises(RecordError, match=says):
        sides.writer.put(make_entry(), files)
    assert sides.store.names(KEY) == []


def test_facts_that_do_not_match_are_refused(sides: Sides):
    put = sides.writer.put(make_entry(), make_files())
    assert isinstance(put, StoredEntry)
    with pytest.raises(RecordError, match="do not match their recorded hashes"):
        sides.writer.put(put.entry, make_files("tampered"))


def test_a_discarded_entry_is_not_offered_again(sides: Sides):
    stored = sides.writer.put(make_entry(), make_files())
    assert isinstance(stored, StoredEntry)
    (name,) = sides.store.names(KEY)
    inode = stored.directory.stat().st_ino if stored.directory.exists() else 0
    sides.store.discard(KEY, name, Bad("damaged", inode))
    assert sides.store.names(KEY) == []


def test_discarding_what_is_gone_is_fine(sides: Sides):
    sides.store.discard(KEY, f"{workload_id()}-{'0' * 32}", Bad("gone", gone=True))


def test_a_read_only_store_says_so(tmp_path: Path):
    with pytest.raises(CacheError, match="read-only"):
        _read_only(tmp_path).store.put(make_entry(), make_files())
