"""What the pipeline gets from the cache: which entry serves, in which order layers answer, and what a bad disk costs."""

from __future__ import annotations

import errno
import logging
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.support.disks import FullDisk, ReadOnlyDisk, RemoteDisk, UnflushedDisk
from tests.support.entries import (
    CREATED,
    ENVIRONMENT,
    make_entry,
    make_files,
    make_kept,
    make_key,
    make_lowered,
    make_result,
    make_sources,
    make_trial,
    workload_id,
)
from tests.support.memory_store import MemoryStore
from torch_forge.caching.disk import Files, LocalFiles
from torch_forge.caching.exchange import ship
from torch_forge.caching.layers import Cache, Found, Kept, Missed, Shared
from torch_forge.caching.staging import STAGING
from torch_forge.caching.store import QUARANTINE, QUARANTINE_KEEP, DirectoryStore
from torch_forge.errors import CacheError
from torch_forge.records.entry import CacheKey
from torch_forge.settings import Settings

KEY = make_key()
TUNED, OTHER = workload_id(1), workload_id(2)
PROGRAM = make_lowered(1, 1).program.digest


def later(hours: float) -> str:
    return (datetime.fromisoformat(CREATED) + timedelta(hours=hours)).isoformat(timespec="microseconds")


def make_cache(root: Path, *, files: Files | None = None, **settings: object) -> Cache:
    return Cache(Settings(cache_dir=root, **settings), files=files)  # type: ignore[arg-type]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


# What is found


def test_a_winner_is_found_by_the_next_process(root: Path):
    stored = make_cache(root).put(make_entry(TUNED), make_files())
    found = make_cache(root).find(KEY, TUNED)
    assert found == Found(stored, "user", exact=True)
    assert not found.needs_build
    assert found.stored.kernel_library.read_bytes() == make_files()["kernel.so"]


def test_a_decision_is_found_by_the_next_process(root: Path):
    make_cache(root).keep(KEY, TUNED, make_result(verdict="kept", why="eager is as fast"))
    kept = make_cache(root).find(KEY, TUNED)
    assert isinstance(kept, Kept)
    assert kept.entry.result.why == "eager is as fast"
    assert isinstance(make_cache(root).find(KEY, OTHER), Missed), "a decision is for one workload"


def test_an_empty_cache_says_so(root: Path):
    assert make_cache(root).find(KEY, TUNED) == Missed(("no entry for this problem on this device",))
    assert not root.exists(), "looking something up makes nothing"


@pytest.mark.parametrize("field", ["compiler", "policy", "isa", "abi"])
def test_a_key_that_differs_is_a_miss_that_names_the_field(root: Path, field: str):
    make_cache(root).put(make_entry(TUNED), make_files())
    missed = make_cache(root).find(replace(KEY, **{field: "something else"}), TUNED)
    assert isinstance(missed, Missed)
    assert any(f" {field}:" in reason for reason in missed.reasons)


@pytest.mark.parametrize(
    ("program", "statics", "max_numel", "missed"),
    [
        (None, {}, 2**31, "verified only for the exact shapes"),
        (PROGRAM, {}, 2**31, ""),
        (PROGRAM, {"p1": 8}, 2**31, ""),
        (PROGRAM, {"p1": 16}, 2**31, "p1 is 8, compiled for 16"),
        (PROGRAM, {}, 31, "32 elements: more than the 31"),
        ("0" * 16, {}, 2**31, "loop form differs"),
    ],
    ids=["exact only", "same program", "static agrees", "static differs", "too large", "other program"],
)
def test_the_certificate_decides_about_other_shapes(program, statics: dict[str, int], max_numel: int, missed: str):
    store = MemoryStore()
    entry = make_entry(TUNED, program=program)
    certificate = replace(entry.certificate, statics=statics, max_numel=max_numel)
    store.put(replace(entry, certificate=certificate), make_files())
    answer = Cache.over([store]).find(KEY, OTHER, make_lowered(4, 8), 32)
    if missed:
        assert isinstance(answer, Missed)
        assert missed in answer.reasons[0]
    else:
        assert isinstance(answer, Found)
        assert not answer.exact


def test_the_layers_are_asked_in_order():
    user, shared = MemoryStore("user"), MemoryStore("shared")
    for store in (shared, user):
        store.put(make_entry(TUNED), make_files(store.label))
    assert Cache.over([user, shared]).find(KEY, TUNED).layer == "user"
    assert Cache.over([shared, user]).find(KEY, TUNED).layer == "shared"


@pytest.mark.parametrize(
    ("near", "far", "expected"),
    [
        (make_entry(OTHER, program=PROGRAM), make_entry(TUNED), "far"),
        (make_entry(OTHER, program=PROGRAM), make_kept(TUNED), "far"),
        (make_kept(TUNED), make_entry(TUNED), "near"),
    ],
    ids=["exact before class", "decision before class", "nearer layer before farther"],
)
def test_an_exact_answer_goes_first(near, far, expected: str):
    layers = [MemoryStore("near"), MemoryStore("far")]
    for store, entry in zip(layers, (near, far), strict=True):
        store.put(entry, {} if entry == make_kept(TUNED) else make_files())
    assert Cache.over(layers).find(KEY, TUNED, make_lowered(4, 8), 32).layer == expected


def test_the_newest_of_one_layer_counts():
    store = MemoryStore()
    store.put(make_entry(TUNED, created=later(0)), make_files())
    store.put(make_kept(TUNED, created=later(1)), {})
    assert isinstance(Cache.over([store]).find(KEY, TUNED), Kept)
    store.put(make_entry(TUNED, created=later(2)), make_files())
    assert isinstance(Cache.over([store]).find(KEY, TUNED), Found)


def test_a_decision_of_another_version_is_measured_again():
    store = MemoryStore()
    store.put(make_kept(TUNED), {})
    upgraded = Cache.over([store], environment=replace(ENVIRONMENT, torch="2.15.0"))
    missed = upgraded.find(KEY, TUNED)
    assert isinstance(missed, Missed)
    assert "torch: decided under '2.14', this is '2.15'" in missed.reasons[0]
    assert isinstance(Cache.over([store], environment=ENVIRONMENT).find(KEY, TUNED), Kept)


def test_shipped_sources_serve_any_device_of_the_architecture(root: Path, tmp_path: Path):
    stored = make_cache(tmp_path / "builder").put(make_entry(TUNED), make_files())
    folder = ship(stored, tmp_path / "csrc")
    assert sorted(p.name for p in folder.iterdir()) == ["entry.json", "glue.cpp", "kernel.cpp"]
    here = make_key(device="cpu-avx2-64x-251g-ffffff", compiler="clang 17", isa="native: avx avx2")
    cache = Cache(Settings(cache_dir=root), shipped=tmp_path / "csrc")
    found = cache.find(here, TUNED)
    assert isinstance(found, Found)
    assert (found.needs_build, found.layer) == (True, "shipped")
    assert found.stored.kernel_source.read_bytes() == make_sources()["kernel.cpp"]
    cache = Cache(Settings(cache_dir=root), shipped=tmp_path / "csrc")
    assert "cannot be compiled here" in cache.find(here, TUNED, can_build=False).reasons[0]
    cache.put(make_entry(TUNED, key=here), make_files())
    again = Cache(Settings(cache_dir=root), shipped=tmp_path / "csrc").find(here, TUNED)
    assert (again.needs_build, again.layer) == (False, "user"), "built once, then its own"


def test_a_second_look_reads_no_files(root: Path):
    cache = make_cache(root)
    stored = cache.put(make_entry(TUNED), make_files())
    (stored.directory / "entry.json").write_text("overwritten behind our back")
    assert cache.find(KEY, TUNED) == Found(stored, "user", exact=True)


def test_a_cache_emptied_during_the_run_is_a_miss(root: Path):
    cache = make_cache(root)
    stored = cache.put(make_entry(TUNED), make_files())
    LocalFiles().remove_tree(root)
    assert isinstance(cache.find(KEY, TUNED), Missed)
    assert cache.put(make_entry(TUNED), make_files()) == stored


# What heals


def test_a_damaged_entry_is_moved_aside_and_healed(root: Path, caplog: pytest.LogCaptureFixture):
    stored = make_cache(root).put(make_entry(TUNED), make_files())
    stored.kernel_library.write_bytes(b"cut")
    cache = make_cache(root)
    missed = cache.find(KEY, TUNED)
    assert isinstance(missed, Missed)
    assert "kernel.so has 3 bytes" in missed.reasons[0]
    assert [r.name for r in caplog.records] == ["torch_forge"]
    assert len(list((root / QUARANTINE).iterdir())) == 1
    assert cache.put(make_entry(TUNED), make_files()) == stored
    assert isinstance(make_cache(root).find(KEY, TUNED), Found)


def test_put_heals_what_it_finds_damaged_in_its_place(root: Path):
    stored = make_cache(root).put(make_entry(TUNED), make_files())
    stored.glue_library.unlink()
    assert make_cache(root).put(make_entry(TUNED), make_files()) == stored
    assert stored.glue_library.exists()


def test_damage_in_one_layer_lets_the_next_answer(root: Path, tmp_path: Path):
    for place in (root, tmp_path / "shared"):
        stored = make_cache(place).put(make_entry(TUNED), make_files())
        if place == root:
            stored.kernel_library.unlink()
    answer = Cache(Settings(cache_dir=root), shared=[tmp_path / "shared"]).find(KEY, TUNED)
    assert answer.layer == f"shared {tmp_path / 'shared'}"


def test_a_read_only_layer_is_never_changed(root: Path, tmp_path: Path):
    stored = make_cache(tmp_path / "shared").put(make_entry(TUNED), make_files())
    stored.kernel_library.unlink()
    cache = Cache(Settings(cache_dir=root), shared=[tmp_path / "shared"])
    assert isinstance(cache.find(KEY, TUNED), Missed)
    assert stored.directory.exists()
    cache.put(make_entry(TUNED), make_files())
    assert not stored.kernel_library.exists()


def test_the_quarantine_is_bounded(root: Path):
    for number in range(QUARANTINE_KEEP + 4):
        stored = make_cache(root).put(make_entry(workload_id(number)), make_files())
        stored.kernel_library.unlink()
        make_cache(root).find(KEY, workload_id(number))
    assert len(list((root / QUARANTINE).iterdir())) == QUARANTINE_KEEP


def test_a_library_that_fails_to_load_is_not_offered_again(root: Path, tmp_path: Path):
    make_cache(tmp_path / "shared").put(make_entry(TUNED), make_files("of the team"))
    cache = Cache(Settings(cache_dir=root), shared=[tmp_path / "shared"])
    cache.put(make_entry(TUNED), make_files())
    for layer in ("user", f"shared {tmp_path / 'shared'}"):
        found = cache.find(KEY, TUNED)
        assert isinstance(found, Found)
        assert found.layer == layer
        cache.forget(found.stored, "undefined symbol: aoti_torch_nothing")
    assert isinstance(cache.find(KEY, TUNED), Missed)
    assert len(list((root / QUARANTINE).iterdir())) == 1
    assert isinstance(make_cache(tmp_path / "shared").find(KEY, TUNED), Found), "others may be able to load it"


def test_a_replaced_entry_goes_once_nobody_can_be_loading_it(root: Path):
    cache = make_cache(root)
    old, young, new = (cache.put(make_entry(TUNED, created=later(h)), make_files()) for h in (0, 1.5, 2))
    assert [e.directory.exists() for e in (old, young, new)] == [False, True, True]
    cache.put(make_entry(TUNED, key=make_key(compiler="clang 17"), created=later(9)), make_files())
    assert new.directory.exists(), "of another compiler"


# What a bad disk costs


@pytest.mark.parametrize(
    "disk",
    [*map(ReadOnlyDisk, (errno.EROFS, errno.EACCES, errno.EDQUOT)), *map(FullDisk, (0, 3, 50, 2000))],
    ids=["read-only", "forbidden", "over quota", "full", "full in the first file", "in a later file", "in the record"],
)
def test_a_disk_that_takes_nothing_costs_one_warning(root: Path, disk: Files, caplog: pytest.LogCaptureFixture):
    cache = make_cache(root, files=disk)
    with caplog.at_level(logging.WARNING, logger="torch_forge"):
        stored = [cache.put(make_entry(w), make_files()) for w in (TUNED, OTHER)]
        cache.keep(KEY, workload_id(3), make_result(verdict="kept"))
    assert len(caplog.records) == 1
    assert "results end with this process" in caplog.text
    assert all(s.kernel_library.read_bytes() == make_files()["kernel.so"] for s in stored), "this run uses them all the same"
    assert [type(cache.find(KEY, w)) for w in (TUNED, OTHER, workload_id(3))] == [Found, Found, Kept]
    assert not any((root / STAGING).glob("*")), "nothing half-written stays"
    assert isinstance(make_cache(root).find(KEY, TUNED), Missed)


def test_a_strict_run_is_told_instead(root: Path):
    with pytest.raises(CacheError, match="cannot be written") as raised:
        make_cache(root, files=FullDisk(0), strict=True).put(make_entry(), make_files())
    assert "TORCH_FORGE_CACHE_DIR" in raised.value.explain()


@pytest.mark.parametrize("done", [True, False], ids=["done", "not done"])
@pytest.mark.parametrize("code", [errno.EBUSY, errno.ESTALE, errno.ENOENT], ids=errno.errorcode.get)
def test_a_network_filesystem_may_lie_about_a_rename(root: Path, code: int, done: bool, caplog: pytest.LogCaptureFixture):
    stored = make_cache(root, files=RemoteDisk(code, done=done)).put(make_entry(TUNED), make_files())
    assert stored.directory.is_relative_to(root)
    assert isinstance(make_cache(root).find(KEY, TUNED), Found)
    assert not caplog.records
    assert not any((root / STAGING).iterdir())


def test_a_rename_that_never_works_is_given_up(root: Path):
    stored = make_cache(root, files=RemoteDisk(errno.ESTALE, done=False, times=99)).put(make_entry(TUNED), make_files())
    assert not stored.directory.is_relative_to(root)


def test_skipping_the_cache_neither_reads_nor_writes(root: Path):
    make_cache(root).put(make_entry(TUNED), make_files())
    before = sorted(root.rglob("*"))
    cache = make_cache(root, skip_cache=True)
    assert isinstance(cache.find(KEY, TUNED), Missed)
    assert cache.put(make_entry(OTHER), make_files()).kernel_library.exists()
    cache.journal(KEY, OTHER).append(make_trial())
    assert isinstance(cache.find(KEY, OTHER), Found)
    assert sorted(root.rglob("*")) == before


# Who may write


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777], ids=oct)
def test_a_directory_that_others_can_write_to_is_refused(root: Path, mode: int):
    root.mkdir()
    root.chmod(mode)
    with pytest.raises(CacheError, match="other users can write") as raised:
        make_cache(root)
    assert "chmod go-w" in raised.value.explain()
    Cache(Settings(cache_dir=root), trust_others=True).put(make_entry(TUNED), make_files())
    assert root.stat().st_mode & 0o7777 == mode, "never chmod-ed"


def test_a_shared_directory_needs_the_same_word(root: Path, tmp_path: Path):
    team = tmp_path / "team"
    team.mkdir()
    team.chmod(0o775)
    with pytest.raises(CacheError):
        Cache(Settings(cache_dir=root), shared=[team])
    cache = Cache(Settings(cache_dir=root), shared=[Shared(team, writable=True, trust_others=True)])
    cache.put(make_entry(TUNED), make_files())
    (entry,) = (team / "v1").glob("*/*/*")
    assert entry.stat().st_mode & 0o777 == 0o775, "the team can read and replace it"
    assert (entry / "kernel.so").stat().st_mode & 0o777 == 0o664


def test_new_directories_are_private(root: Path):
    make_cache(root).put(make_entry(TUNED), make_files())
    assert {p.stat().st_mode & 0o777 for p in (root, *root.rglob("*")) if p.is_dir()} == {0o700}
    assert {p.stat().st_mode & 0o777 for p in root.rglob("*") if p.is_file()} == {0o600}


def test_a_file_as_cache_directory_is_an_error_with_advice(root: Path):
    root.write_text("")
    with pytest.raises(CacheError, match="not a directory"):
        make_cache(root)


# How much it reads


def test_finding_one_of_many_reads_only_that_one(root: Path):
    class Counting(DirectoryStore):
        reads = 0

        def read(self, key: CacheKey, name: str):
            self.reads += 1
            return super().read(key, name)

    writer = DirectoryStore(root, files=UnflushedDisk())
    for number in range(300):
        writer.put(make_entry(workload_id(number)), make_files())
    store = Counting(root)
    cache = Cache.over([store])
    assert isinstance(cache.find(KEY, workload_id(123)), Found)
    assert store.reads == 1
    assert isinstance(cache.find(KEY, workload_id(123)), Found)
    assert store.reads == 1
