"""Looking after a cache directory: counting, verifying, pruning, moving to other machines; and its command line."""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from tests.support.disks import UnflushedDisk
from tests.support.entries import make_entry, make_files, make_kept, make_key, make_trial, workload_id
from torch_forge.caching import exchange, upkeep
from torch_forge.caching.entry import ENTRY_FILE, StoredEntry
from torch_forge.caching.exchange import MANIFEST, export_entries, import_entries
from torch_forge.caching.explain import explain
from torch_forge.caching.layers import Cache, Found
from torch_forge.caching.staging import ABANDONED_AFTER_S, STAGING, leftovers, staging_path
from torch_forge.caching.store import QUARANTINE, DirectoryStore
from torch_forge.cli import cache as cli
from torch_forge.errors import CacheError, ForgeError
from torch_forge.settings import Settings

KEY = make_key()
OTHER_DEVICE = "cpu-avx512-64x-251g-ffffff"


def ago(days: float) -> str:
    return (datetime.now(timezone.utc) - timedelta(days=days)).isoformat(timespec="microseconds")


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    """Two kernels and a decision for one device, a kernel for another; made 40, 30, 20 and 10 days ago."""
    store = DirectoryStore(tmp_path / "cache", files=UnflushedDisk())
    store.put(make_entry(workload_id(0), created=ago(40)), make_files())
    store.put(make_entry(workload_id(1), created=ago(30)), make_files())
    store.put(make_kept(workload_id(2), created=ago(20)), {})
    store.put(make_entry(workload_id(3), key=make_key(device=OTHER_DEVICE), created=ago(10)), make_files())
    return store


def workloads(store: DirectoryStore) -> list[int]:
    return sorted(int(located.name.partition("-")[0], 16) for located in upkeep.walk(store))


def damage(store: DirectoryStore, number: int) -> None:
    (path,) = store.root.glob(f"v1/*/*/{workload_id(number)}-*/glue.so")
    path.write_bytes(b"")


# Info, verify


def test_the_survey_counts_by_device(store: DirectoryStore):
    Cache(Settings(cache_dir=store.root)).journal(KEY, workload_id(9)).append(make_trial())
    info = upkeep.survey(store)
    assert [(d.device, d.kernels, d.kept, d.bad) for d in info.devices] == [(KEY.device, 2, 1, 0), (OTHER_DEVICE, 1, 0, 0)]
    assert (info.unfinished_runs, info.quarantined) == (1, 0)
    assert info.size_bytes >= sum(d.size_bytes for d in info.devices) > 4000


def test_a_cache_that_is_not_there_is_empty(tmp_path: Path):
    info = upkeep.survey(DirectoryStore(tmp_path / "none"))
    assert (info.exists, info.devices, info.size_bytes) == (False, (), 0)


def test_verify_finds_damage_and_moves_it_only_if_asked(store: DirectoryStore):
    damage(store, 1)
    for quarantine in (False, True):
        damaged, total = upkeep.verify(store, quarantine=quarantine)
        assert total == 4
        assert [d.name.partition("-")[0] for d in damaged] == [workload_id(1)]
    assert workloads(store) == [0, 2, 3]
    assert upkeep.verify(store, quarantine=True) == ((), 3)


# Prune


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({}, [0, 1, 2, 3]),
        ({"older_than_s": 25 * 86400.0}, [2, 3]),
        ({"max_bytes": 1 << 30}, [0, 1, 2, 3]),
        ({"max_bytes": 7_000}, [2, 3]),
        ({"max_bytes": 0}, []),
        ({"everything": True}, []),
    ],
    ids=["leftovers only", "by age", "fits", "by size, oldest first", "no room", "all"],
)
def test_prune_removes_what_it_is_told(store: DirectoryStore, options: dict, left: list[int]):
    sizes = [located.size_bytes for located in upkeep.walk(store)]
    assert sizes[2] + sizes[3] < 7_000 < sum(sizes[1:]), "the table's sizes assume this"
    pruned = upkeep.prune(store, **options)
    assert workloads(store) == left
    assert len(pruned.entries) == 4 - len(left)
    assert (pruned.freed_bytes > 0) == (len(left) < 4)


def test_prune_touches_nothing_that_is_not_the_caches(store: DirectoryStore):
    (store.root / "v1" / "README").write_text("mine")
    (store.root / "notes.txt").write_text("mine")
    upkeep.prune(store, everything=True)
    assert (store.root / "notes.txt").exists()
    assert (store.root / "v1" / "README").exists()


def test_prune_clears_the_quarantine_and_what_killed_processes_left(store: DirectoryStore):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    mine = staging_path(store.root)
    host, pid, made, salt = mine.name.split("-")
    old_ns = int(made) - int((ABANDONED_AFTER_S + 60) * 1e9)
    left = {
        mine.name: True,
        f"{host}-{dead.pid}-{made}-{salt}": False,
        f"00000000-{pid}-{made}-{salt}": True,
        f"00000000-{pid}-{old_ns}-{salt}": False,
        "what-is-this": False,
    }
    for name in left:
        (store.root / STAGING / name).mkdir(parents=True)
        (store.root / STAGING / name / "kernel.so").write_bytes(b"half")
    damage(store, 0)
    upkeep.verify(store, quarantine=True)
    assert len(leftovers(store.root)) == 3
    assert upkeep.prune(store).leftovers == 4
    assert {name: (store.root / STAGING / name).exists() for name in left} == left
    assert not list((store.root / QUARANTINE).iterdir())


def test_the_first_put_of_a_process_clears_leftovers(store: DirectoryStore):
    (store.root / STAGING / "what-is-this").mkdir(parents=True)
    DirectoryStore(store.root).put(make_entry(workload_id(5)), make_files())
    assert not list((store.root / STAGING).iterdir())


def test_prune_keeps_a_tuning_run_that_may_be_resumed(store: DirectoryStore):
    journals = [Cache(Settings(cache_dir=store.root)).journal(KEY, workload_id(n)) for n in (8, 9)]
    for journal in journals:
        journal.append(make_trial())
    old, young = sorted((store.root / "journals").rglob("*.jsonl"))
    long_ago = time.time() - upkeep.UNTOUCHED_JOURNAL_S - 60
    os.utime(old, (long_ago, long_ago))
    upkeep.prune(store)
    assert (old.exists(), young.exists()) == (False, True)


# Why


@pytest.mark.parametrize(
    ("digest", "wanted", "workload", "reasons"),
    [
        ("ffff", {}, "", {}),
        (KEY.problem, {}, "", {0: [], 1: [], 2: [], 3: []}),
        (KEY.problem[:6], {"device": KEY.device}, "", {0: [], 1: [], 2: [], 3: ["device"]}),
        (KEY.problem, {"compiler": "g++ 13"}, "", {n: ["compiler"] for n in range(4)}),
        (workload_id(1), {"abi": "x", "policy": "tf32"}, "", {1: ["policy", "abi"]}),
        (KEY.problem, {}, workload_id(1), {0: ["workload"], 1: [], 2: ["workload"], 3: ["workload"]}),
    ],
    ids=["unknown", "problem", "other device", "other compiler", "workload, two fields", "exact case"],
)
def test_why_names_the_field_that_missed(store: DirectoryStore, digest: str, wanted: dict, workload: str, reasons: dict):
    found = explain(store, digest, wanted, workload=workload)
    assert {int(e.workload, 16): [r.partition(":")[0] for r in e.reasons] for e in found} == reasons


def test_why_shows_damage(store: DirectoryStore):
    (path,) = store.root.glob(f"v1/*/*/{workload_id(1)}-*/{ENTRY_FILE}")
    path.write_bytes(path.read_bytes()[:-10])
    (found,) = explain(store, workload_id(1), {})
    assert (found.kind, len(found.reasons)) == ("damaged", 1)


# Export and import


@pytest.fixture
def archive(store: DirectoryStore, tmp_path: Path) -> Path:
    export_entries(store, upkeep.walk(store), tmp_path / "out.tar.gz")
    return tmp_path / "out.tar.gz"


def members(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        return {m.name: tar.extractfile(m).read() for m in tar}


def rewrite(archive: Path, change: Callable[[dict[str, bytes]], object], *extra: tarfile.TarInfo) -> None:
    """The archive again, with other members."""
    content = members(archive)
    change(content)
    with tarfile.open(archive, "w:gz") as tar:
        for name, data in content.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for info in extra:
            tar.addfile(info, io.BytesIO(b"x" * info.size))


def test_what_was_exported_is_imported_whole(store: DirectoryStore, archive: Path, tmp_path: Path):
    there = DirectoryStore(tmp_path / "there")
    done = import_entries(there, archive, device=KEY.device)
    assert (len(done.entries), done.refused) == (4, ())
    assert [name.split("/")[0] for name in done.other_device] == [OTHER_DEVICE], "kept, but marked"
    assert upkeep.verify(there, quarantine=False) == ((), 4)
    assert sorted(p.name for p in there.root.glob("v1/*/*/*")) == sorted(p.name for p in store.root.glob("v1/*/*/*"))
    assert isinstance(Cache(Settings(cache_dir=there.root)).find(KEY, workload_id(1)), Found)
    assert len(import_entries(there, archive).entries) == 4, "again: nothing new, nothing wrong"


def test_damaged_entries_are_not_exported(store: DirectoryStore, tmp_path: Path):
    damage(store, 0)
    names = export_entries(store, upkeep.walk(store), tmp_path / "out.tar.gz")
    assert len(names) == 3
    assert len([p for p in tmp_path.iterdir() if p.name != "cache"]) == 1, "no partial file stays"


def test_an_archive_that_cannot_be_written_is_an_error_with_advice(store: DirectoryStore, tmp_path: Path):
    with pytest.raises(CacheError, match="cannot be written"):
        export_entries(store, upkeep.walk(store), tmp_path / "no" / "such" / "folder.tar.gz")


def link(name: str, kind: bytes, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def plain(name: str, size: int = 4) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = size
    return info


FOLDER = f"{KEY.device}/{KEY.problem}/{workload_id(7)}-{'0' * 32}"
HOSTILE = {
    "absolute path": (plain("/tmp/evil/kernel.so"), "not a name that an export writes"),
    "path upwards": (plain("../../../evil/kernel.so"), "not a name that an export writes"),
    "path upwards, right depth": (plain("../../evil/kernel.so"), "not a name that an export writes"),
    "symbolic link": (link(f"{FOLDER}/kernel.so", tarfile.SYMTYPE, "/etc/passwd"), "not a plain file"),
    "hard link": (link(f"{FOLDER}/kernel.so", tarfile.LNKTYPE, MANIFEST), "not a plain file"),
    "device": (link(f"{FOLDER}/kernel.so", tarfile.CHRTYPE, ""), "not a plain file"),
    "directory": (link(FOLDER, tarfile.DIRTYPE, ""), "not a plain file"),
    "foreign file": (plain(f"{FOLDER}/conftest.py"), "not a name that an export writes"),
    "entry without record": (plain(f"{FOLDER}/kernel.so"), "no entry.json"),
    "record that is not one": (plain(f"{FOLDER}/entry.json"), "not JSON"),
}


@pytest.mark.parametrize(("member", "says"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_member_is_refused_and_the_rest_taken(archive: Path, tmp_path: Path, member: tarfile.TarInfo, says: str):
    rewrite(archive, lambda content: None, member)
    there = DirectoryStore(tmp_path / "a" / "b" / "c" / "there")
    done = import_entries(there, archive)
    assert len(done.entries) == 4
    (refused,) = done.refused
    assert says in refused.reason
    outside = [p for p in tmp_path.rglob("*") if p.is_file() and not p.is_relative_to(there.root) and "cache" not in p.parts]
    assert outside == [archive]
    assert not any(p.is_symlink() for p in there.root.rglob("*"))


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("kernel.so", lambda data: data + b"!", "recorded hashes"),
        ("kernel.so", lambda data: None, "recorded hashes"),
        (ENTRY_FILE, lambda data: data.replace(b'"share": 0.25', b'"share": 0.99'), "does not match the entry's name"),
        (ENTRY_FILE, lambda data: data.replace(b'"schema": 1', b'"schema": 2'), "entry format 2"),
        (ENTRY_FILE, lambda data: data[:-20], "not JSON"),
    ],
    ids=["library altered", "library missing", "record altered", "other format", "record truncated"],
)
def test_an_altered_entry_is_refused_and_the_rest_taken(archive: Path, tmp_path: Path, name: str, change, says: str):
    def alter(content: dict[str, bytes]) -> None:
        path = next(p for p in content if p.endswith(f"/{name}") and workload_id(1) in p)
        data = change(content.pop(path))
        if data is not None:
            content[path] = data

    rewrite(archive, alter)
    there = DirectoryStore(tmp_path / "there")
    done = import_entries(there, archive)
    assert [says in r.reason for r in done.refused] == [True]
    assert workloads(there) == [0, 2, 3]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-40]),
        lambda path: path.write_bytes(b"PK\x03\x04 a zip"),
        lambda path: path.write_bytes(gzip.compress(b"not a tar" * 200)),
        lambda path: path.write_bytes(b""),
        lambda path: path.unlink(),
        lambda path: rewrite(path, lambda content: content.pop(MANIFEST)),
        lambda path: rewrite(path, lambda content: content.update({MANIFEST: content[MANIFEST].replace(b": 1,", b": 9,")})),
    ],
    ids=["truncated", "zip", "not a tar", "empty", "missing", "no manifest", "other format"],
)
def test_what_is_not_an_archive_of_ours_is_an_error_with_advice(archive: Path, tmp_path: Path, spoil):
    spoil(archive)
    with pytest.raises(CacheError) as raised:
        import_entries(DirectoryStore(tmp_path / "there"), archive)
    assert raised.value.advice


def test_a_decompression_bomb_is_refused_unread(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exchange, "MAX_ARCHIVE_BYTES", 100_000)
    rewrite(archive, lambda content: None, plain(f"{FOLDER}/kernel.so", 200_000))
    with pytest.raises(CacheError, match="more than"):
        import_entries(DirectoryStore(tmp_path / "there"), archive)
    assert not (tmp_path / "there").exists()


# The command line


def call(root: Path, *words: str) -> int:
    parser = argparse.ArgumentParser(prog="torch-forge cache")
    cli.prepare_parser(parser)
    return cli.run(parser.parse_args(words), Settings(cache_dir=root))


def test_every_command_speaks_to_people(store: DirectoryStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    table = [
        (["info"], 0, "kept eager"),
        (["why", KEY.problem, "--compiler", "g++ 13"], 1, "missed: compiler: the entry has 'g++ 12.2.0', wanted 'g++ 13'"),
        (["why", workload_id(2)], 0, "softmax: kept, eager is as fast"),
        (["why", "ffff"], 1, "nothing is stored for ffff"),
        (["verify"], 0, "4 entries, 0 damaged"),
        (["export", str(tmp_path / "x.tar.gz"), "--device", OTHER_DEVICE], 0, "1 of 1 entries written"),
        (["import", str(tmp_path / "x.tar.gz"), "--device", KEY.device], 0, "(for another device)"),
        (["export", str(tmp_path / "csrc"), "--sources"], 0, "3 of 4 entries written"),
        (["prune", "--older-than-days", "25"], 0, "removed 2 entries and 0 leftovers"),
        (["prune", "--all"], 0, "removed 2 entries"),
    ]
    for words, status, says in table:
        assert call(store.root, *words) == status, words
        assert says in capsys.readouterr().out, words
    assert len(list((tmp_path / "csrc").glob("cpu_avx2/*/*/kernel.cpp"))) == 3


@pytest.mark.parametrize("words", [["info"], ["why", KEY.problem], ["verify"], ["prune"]], ids=lambda w: w[0])
def test_every_command_speaks_json(store: DirectoryStore, words: list[str], capsys: pytest.CaptureFixture[str]):
    call(store.root, *words, "--json")
    assert json.loads(capsys.readouterr().out)


def test_verify_tells_by_its_status(store: DirectoryStore, capsys: pytest.CaptureFixture[str]):
    damage(store, 1)
    assert call(store.root, "verify", "--quarantine") == 1
    assert "glue.so has 0 bytes" in capsys.readouterr().out
    assert call(store.root, "verify") == 0


def test_a_wrong_limit_is_misuse(store: DirectoryStore):
    with pytest.raises(ForgeError, match="negative"):
        call(store.root, "prune", "--max-gb", "-1")


def test_another_directory_can_be_named(store: DirectoryStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert call(tmp_path / "unused", "info", "--dir", str(store.root)) == 0
    assert str(store.root) in capsys.readouterr().out


def test_a_stored_kernel_carries_what_a_user_needs_to_judge_it(store: DirectoryStore):
    (name,) = [n for n in store.names(KEY) if n.startswith(workload_id(1))]
    stored = store.fetch(KEY, name)
    assert isinstance(stored, StoredEntry)
    assert replace(stored.entry, files={}).result.eager_us == 20.0
    assert stored.entry.cases
    assert stored.entry.environment.torch
