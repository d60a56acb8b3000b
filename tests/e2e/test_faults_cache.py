"""A cache that was cut, filled with zeros, mixed up or planted: a miss that the next put heals, never another kernel."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support import native
from tests.support.disks import ReadOnlyDisk
from tests.support.entries import make_entry, make_key, workload_id
from torch_forge.caching import upkeep
from torch_forge.caching.entry import ENTRY_FILE, GLUE_SOURCE, KERNEL_LIBRARY, StoredEntry
from torch_forge.caching.layers import Cache, Found, Missed
from torch_forge.caching.staging import STAGING
from torch_forge.caching.store import DirectoryStore
from torch_forge.cli.main import main
from torch_forge.dispatch.glue import glue_source
from torch_forge.dispatch.registry import load_op
from torch_forge.records.entry import content_name
from torch_forge.settings import Settings

pytestmark = pytest.mark.compiler
KEY = make_key()
WRONG = native.RELU.replace("x[i] < 0 ? 0 : x[i]", "x[i]")
CUTS: dict[str, Callable[[bytes], bytes]] = {
    "nothing left": lambda data: b"",
    "one byte": lambda data: data[:1],
    "a header": lambda data: data[:64],
    "one page": lambda data: data[:4096] if len(data) > 4096 else data[: len(data) // 3],
    "half": lambda data: data[: len(data) // 2],
    "all but the last byte": lambda data: data[:-1],
    "one byte more": lambda data: data + b"\0",
    "twice": lambda data: data + data,
    "zeros of the same size": lambda data: bytes(len(data)),
    "zeros from the middle": lambda data: data[: len(data) // 2] + bytes(len(data) - len(data) // 2),
    "zeros for a last page": lambda data: data[:-16] + bytes(16),
}
"""What a crash of the machine, a full disk or a broken copy makes of a file."""
FILES = (ENTRY_FILE, "kernel.cpp", GLUE_SOURCE, KERNEL_LIBRARY, "glue.so")


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """The files of a right kernel, and of one that returns its input."""
    folder = tmp_path_factory.mktemp("built")
    glue_text = glue_source("faults_relu", KEY.problem, 1, 1, "cpu")
    glue = native.build(glue_text, folder / "glue.so").read_bytes()
    return {
        name: {
            "kernel.cpp": source.encode(),
            GLUE_SOURCE: glue_text.encode(),
            KERNEL_LIBRARY: native.build(source, folder / f"{name}.so").read_bytes(),
            "glue.so": glue,
        }
        for name, source in (("right", native.RELU), ("wrong", WRONG))
    }


def cache_at(root: Path) -> Cache:
    return Cache(Settings(cache_dir=root))


def put(root: Path, files: dict[str, bytes], number: int = 0) -> StoredEntry:
    stored = cache_at(root).put(make_entry(workload_id(number)), files)
    assert isinstance(stored, StoredEntry)
    return stored


def runs(stored: StoredEntry) -> bool:
    """Whether the stored operator loads and computes what was put there."""
    op = load_op("faults_relu", KEY.problem, 1, 1, "cpu", stored.glue_library, stored.kernel_library)
    x = torch.tensor([-1.0, 2.0, -3.0])
    bound = op.bind(native.binding([x], [torch.empty_like(x)], (3,)))
    try:
        return torch.equal(op.op(x), x.relu())
    finally:
        op.unbind(bound)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_a_miss_that_heals(tmp_path: Path, contents, name: str, cut: str):
    root = tmp_path / "cache"
    damaged = put(root, contents["right"]).directory / name
    damaged.write_bytes(CUTS[cut](damaged.read_bytes()))
    assert upkeep.verify(DirectoryStore(root), quarantine=False)[1] == 1
    assert len(upkeep.verify(DirectoryStore(root), quarantine=False)[0]) == 1
    missed = cache_at(root).find(KEY, workload_id())
    assert isinstance(missed, Missed)
    assert any(name in reason for reason in missed.reasons), missed.reasons
    healed = put(root, contents["right"])
    assert main(["cache", "verify", "--dir", str(root)]) == 0
    found = cache_at(root).find(KEY, workload_id())
    assert isinstance(found, Found)
    assert found.stored == healed
    assert not list((root / STAGING).iterdir())


def test_what_was_healed_runs(tmp_path: Path, contents):
    library = put(tmp_path / "cache", contents["right"]).kernel_library
    library.write_bytes(library.read_bytes()[:1000])
    assert runs(put(tmp_path / "cache", contents["right"]))


def test_another_entry_s_kernel_is_not_taken(tmp_path: Path, contents):
    """Also if it is as large and as loadable as the right one."""
    root = tmp_path / "cache"
    right, wrong = put(root, contents["right"], 0), put(root, contents["wrong"], 1)
    shutil.copyfile(wrong.kernel_library, right.kernel_library)
    assert isinstance(cache_at(root).find(KEY, workload_id(0)), Missed)
    assert runs(put(root, contents["right"], 0))


def test_entries_under_each_other_s_names_are_not_taken(tmp_path: Path, contents):
    root = tmp_path / "cache"
    first, second = put(root, contents["right"], 0).directory, put(root, contents["wrong"], 1).directory
    first.rename(aside := first.with_name("aside"))
    second.rename(first)
    aside.rename(second)
    for number in (0, 1):
        assert isinstance(cache_at(root).find(KEY, workload_id(number)), Missed)
    assert main(["cache", "verify", "--dir", str(root)]) == 0, "what was moved aside is no entry any more"


@pytest.mark.parametrize("schema", [0, 2, 99])
def test_a_record_of_another_version_is_a_miss(tmp_path: Path, contents, schema: int):
    """A later or earlier release wrote it, whole and under its right name."""
    root = tmp_path / "cache"
    stored = put(root, contents["right"])
    data = (stored.directory / ENTRY_FILE).read_bytes()
    other = data.replace(f'"schema": {stored.entry.schema}'.encode(), f'"schema": {schema}'.encode())
    assert other != data
    (stored.directory / ENTRY_FILE).write_bytes(other)
    stored.directory.rename(stored.directory.with_name(content_name(workload_id(), other)))
    missed = cache_at(root).find(KEY, workload_id())
    assert isinstance(missed, Missed)
    assert f"entry format {schema}" in missed.reasons[0]
    assert isinstance(cache_at(root).find(KEY, workload_id()), Missed)
    assert runs(put(root, contents["right"]))


@pytest.mark.parametrize("name", FILES)
def test_damage_that_cannot_be_moved_away_is_passed_over(tmp_path: Path, contents, name: str):
    root = tmp_path / "cache"
    damaged = put(root, contents["right"]).directory / name
    damaged.write_bytes(damaged.read_bytes()[:10])
    before = sorted(p for p in root.rglob("*"))
    cache = Cache(Settings(cache_dir=root), files=ReadOnlyDisk())
    for _ in range(2):
        assert isinstance(cache.find(KEY, workload_id()), Missed)
    assert sorted(p for p in root.rglob("*")) == before
    stored = cache.put(make_entry(), contents["right"])
    assert not stored.directory.is_relative_to(root), "it lives with this process"
    found = cache.find(KEY, workload_id())
    assert isinstance(found, Found)
    assert runs(found.stored)


def test_an_entry_that_vanishes_while_it_is_used_is_found_again(tmp_path: Path, contents):
    """Somebody empties the cache of a running process."""
    root = tmp_path / "cache"
    cache = cache_at(root)
    cache.put(make_entry(), contents["right"])
    shutil.rmtree(root)
    assert isinstance(cache.find(KEY, workload_id()), Missed)
    assert isinstance(cache.put(replace(make_entry(), files={}), contents["right"]), StoredEntry)
    assert isinstance(cache.find(KEY, workload_id()), Found)
    assert os.listdir(root / STAGING) == []
