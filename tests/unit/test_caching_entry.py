"""Whatever is done to an entry on disk is a miss with a reason, never an exception, and never that entry."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.entries import (
    SOURCE,
    make_candidate,
    make_device,
    make_entry,
    make_files,
    make_kept,
    make_key,
    workload_id,
)
from torch_forge.caching.entry import ENTRY_FILE, Bad, StoredEntry, decode_entry, fetch_entry, read_entry
from torch_forge.caching.store import DirectoryStore
from torch_forge.errors import RecordError
from torch_forge.records import codec
from torch_forge.records.entry import CacheKey, Environment, KernelFacts, content_name
from torch_forge.records.kernels import Built
from torch_forge.records.problem import Graph, Problem
from torch_forge.records.tensors import contiguous


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    stored = DirectoryStore(tmp_path / "cache").put(make_entry(), make_files())
    assert isinstance(stored, StoredEntry)
    return stored.directory


def truncate(name: str, keep: float) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        data = (directory / name).read_bytes()
        (directory / name).write_bytes(data[: int(len(data) * keep)])

    return damage


def flip(name: str, at: float) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        data = bytearray((directory / name).read_bytes())
        data[int((len(data) - 1) * at)] ^= 1
        (directory / name).write_bytes(data)

    return damage


def unlink(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).unlink()


def link_elsewhere(name: str) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        target = directory.parent.parent / f"planted-{name}"
        shutil.move(directory / name, target)
        (directory / name).symlink_to(target)

    return damage


def link_directory(directory: Path) -> None:
    target = directory.with_name("elsewhere")
    directory.rename(target)
    directory.symlink_to(target)


def pipe(directory: Path) -> None:
    (directory / "kernel.so").unlink()
    os.mkfifo(directory / "kernel.so")


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "entry.json empty": (truncate(ENTRY_FILE, 0.0), "hash in the entry's name"),
    "entry.json half": (truncate(ENTRY_FILE, 0.5), "hash in the entry's name"),
    "entry.json without its last byte": (truncate(ENTRY_FILE, 0.9999), "hash in the entry's name"),
    "entry.json altered": (flip(ENTRY_FILE, 0.7), "hash in the entry's name"),
    "entry.json gone": (unlink(ENTRY_FILE), "entry.json is missing"),
    "entry.json linked": (link_elsewhere(ENTRY_FILE), "cannot be opened as a plain file"),
    "library empty": (truncate("kernel.so", 0.0), "kernel.so has 0 bytes"),
    "library truncated": (truncate("kernel.so", 0.5), "kernel.so has"),
    "library altered": (flip("glue.so", 0.5), "glue.so does not match its recorded hash"),
    "library gone": (unlink("glue.so"), "glue.so is missing"),
    "library linked": (link_elsewhere("kernel.so"), "cannot be opened as a plain file"),
    "library a pipe": (pipe, "not a plain file"),
    "source altered": (flip("kernel.cpp", 0.5), "kernel.cpp does not match"),
    "directory linked": (link_directory, "symbolic link"),
    "directory writable by all": (lambda d: d.chmod(0o777), "other users can write"),
    "directory writable by the group": (lambda d: d.chmod(0o770), "other users can write"),
    "directory renamed": (lambda d: d.rename(d.with_name(f"{workload_id()}-{'0' * 32}")), "gone"),
    "a file in its place": (lambda d: (shutil.rmtree(d), d.write_text("x")), "cannot be read"),
}


@pytest.mark.parametrize(("damage", "says"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_entry_is_a_value_with_its_reason(directory: Path, damage: Callable[[Path], None], says: str):
    damage(directory)
    found = fetch_entry(directory, False)
    assert isinstance(found, Bad)
    assert says in found.reason
    assert found.gone == (not directory.exists())


def test_an_undamaged_entry_is_found(directory: Path):
    assert isinstance(fetch_entry(directory, False), StoredEntry)


def test_a_directory_that_others_write_to_is_accepted_only_on_request(directory: Path):
    directory.chmod(0o777)
    assert isinstance(fetch_entry(directory, True), StoredEntry)


def test_every_truncation_of_the_record_is_refused(directory: Path):
    """Also with the name made to fit, as if somebody had planted it: then the strict decoder has to refuse."""
    data = (directory / ENTRY_FILE).read_bytes()
    for length in [*range(0, len(data) - 1, 97), len(data) - 2]:
        planted = directory.with_name(content_name(workload_id(), data[:length]))
        planted.mkdir(mode=0o700)
        (planted / ENTRY_FILE).write_bytes(data[:length])
        assert isinstance(read_entry(planted, False), Bad), length


def test_bytes_after_the_record_are_refused(directory: Path):
    with pytest.raises(RecordError):
        decode_entry((directory / ENTRY_FILE).read_bytes() + b"{}")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda p: p.update(extra=1), "unknown"),
        (lambda p: p.pop("gates"), "missing"),
        (lambda p: p.update(schema=99), "entry format 99"),
        (lambda p: p.update(record="Pickle"), "none of"),
        (lambda p: p.update(created="yesterday"), "isoformat"),
        (lambda p: p.update(created="2025-01-02T03:04:05"), "no time zone"),
        (lambda p: p.update(workload="../../etc"), "cannot name a directory"),
        (lambda p: p["key"].update(device="../evil"), "cannot name a directory"),
        (lambda p: p["key"].update(policy="bitwise"), "another problem"),
        (lambda p: p["files"].update({"/etc/passwd": p["files"]["glue.so"]}), "unexpected file"),
        (lambda p: p["kernel"].update(backend="rocm"), "unknown backend"),
    ],
    ids=[
        "extra field", "missing field", "other format", "other record", "no date", "naive date", "path as workload",
        "path as device", "certificate for another policy", "path as file", "unknown backend",
    ],
)  # fmt: skip
def test_a_foreign_record_is_refused_with_its_reason(directory: Path, change: Callable[[dict], object], says: str):
    stored = read_entry(directory, False)
    plain = codec.to_plain(stored)
    change(plain)
    with pytest.raises(RecordError, match=says):
        decode_entry(codec.json.dumps(plain).encode())


def test_a_deeply_nested_record_does_not_overflow():
    with pytest.raises(RecordError):
        decode_entry(b"[" * 200_000)


def test_a_record_is_equal_after_storing_even_with_whole_numbers(directory: Path):
    entry = make_entry(result=make_entry().result.__class__(**{**vars(make_entry().result), "eager_us": 20}))
    stored = DirectoryStore(directory.parents[3]).put(entry, make_files())
    assert isinstance(stored, StoredEntry)
    assert fetch_entry(stored.directory, False) == stored


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"compiler": "g++ 13.1.0"}, "compiler: the entry has 'g++ 12.2.0', wanted 'g++ 13.1.0'"),
        ({"policy": "bitwise"}, "policy:"),
        ({"abi": "forge2-torch_stable-linux-x86_64"}, "abi:"),
        ({"isa": "native: avx avx2 avx512f"}, "isa: only in the entry: fma; only here: avx512f"),
        ({"device": "cpu-avx2-64x-251g-1f3a5b"}, "device:"),
    ],
    ids=["compiler", "policy", "abi", "isa", "device"],
)
def test_a_key_names_the_field_that_differs(changes: dict[str, str], says: str):
    (reason,) = make_key().reasons_against(make_key(**changes))
    assert reason.startswith(says)


def test_without_a_compiler_any_compilers_entry_will_do():
    assert make_key().reasons_against(make_key(compiler="")) == []
    assert make_key(compiler="").reasons_against(make_key()) != []


def test_sources_need_only_problem_policy_and_architecture():
    tuned_elsewhere = make_key(device="cpu-avx2-64x-251g-ffffff", isa="x86-64-v3: avx", compiler="clang 17", abi="other")
    assert tuned_elsewhere.reasons_against(make_key(), sources_only=True) == []
    assert len(tuned_elsewhere.reasons_against(make_key(arch="cpu_avx512", policy="tf32"), sources_only=True)) == 2


def test_a_key_is_made_from_what_a_run_knows():
    problem = Problem("relu", Graph((contiguous((4,), "float32"),), (), ("%i0",)))
    key = CacheKey.of(problem, make_device(), compiler="g++ 12.2.0")
    assert (key.problem, key.policy, key.arch) == (problem.digest, "eager-equivalent", "cpu_avx2")
    assert key.isa == "native: avx avx2 fma"
    gpu = CacheKey.of(problem, make_device(type="cuda", arch="sm_90", features=()), compiler="nvcc 13.0")
    assert (gpu.arch, gpu.isa) == ("sm_90", "")


def test_a_candidate_comes_back_from_its_facts_and_source_alone():
    candidate = make_candidate(statics={"p0": 3}, program="1234", workspace_bytes=64)
    facts = KernelFacts.of(Built(candidate, "/x.so", "0" * 64, 1.0, {"registers": 32}))
    assert facts.candidate(candidate.problem, SOURCE) == candidate
    with pytest.raises(ValueError, match="not the one"):
        facts.candidate(candidate.problem, SOURCE + " ")


@pytest.mark.parametrize(
    ("environment", "stale"),
    [
        (Environment("0.1.0", "2.14.0+cu130", "3.13.0", "another name", "580"), []),
        (Environment("0.2.0", "2.14.1", "3.11.2", "", ""), ["torch_forge"]),
        (Environment("0.1.0", "2.15.0", "3.11.2", "", ""), ["torch"]),
    ],
    ids=["patch version", "other torch_forge", "other torch"],
)
def test_a_decision_goes_out_of_date_with_the_versions_it_weighed(environment: Environment, stale: list[str]):
    assert [reason.split(":")[0] for reason in make_kept().reasons_against(environment)] == stale
