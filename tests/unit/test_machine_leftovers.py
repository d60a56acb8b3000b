"""Folders of processes that were killed are found by their names and removed; all others stay."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from torch_forge.errors import WorkerError
from torch_forge.machine import leftovers
from torch_forge.machine.leftovers import alive, demand_room, host, owned_folder, remove_for_good, sweep


@pytest.fixture(scope="module")
def dead_pid() -> int:
    """Of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_only_folders_of_dead_processes_of_this_host_go(tmp_path: Path, dead_pid: int):
    own = owned_folder(tmp_path)
    other_host = tmp_path / f"torch_forge-{'0' * 8}-{dead_pid}-abc"
    foreign = tmp_path / f"torch_forge-lanes-{dead_pid}"
    target = tmp_path / "target"
    link = tmp_path / f"torch_forge-{host()}-{dead_pid}-link"
    dead = tmp_path / f"torch_forge-{host()}-{dead_pid}-abc_1"
    for folder in (other_host, foreign, target, dead / "deep"):
        folder.mkdir(parents=True)
        (folder / "file").write_text("x")
    link.symlink_to(target)
    sweep(tmp_path)
    assert not dead.exists()
    assert {own, other_host, foreign, target, link} <= set(tmp_path.iterdir())
    assert (target / "file").exists()


def test_other_users_folders_stay(tmp_path: Path, dead_pid: int, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / f"torch_forge-{host()}-{dead_pid}-abc"
    folder.mkdir()
    monkeypatch.setattr(os, "getuid", lambda: 12345678)
    sweep(tmp_path)
    assert folder.exists()


def test_a_place_that_cannot_be_listed_is_no_error(tmp_path: Path):
    sweep(tmp_path / "nowhere")


def test_who_is_alive(dead_pid: int):
    assert alive(os.getpid())
    assert alive(1)
    assert not alive(dead_pid)
    assert not alive(1 << 70)


def test_a_folder_that_is_still_written_to_goes_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder, writes = owned_folder(tmp_path), iter(range(3))

    def remove(path: Path) -> None:
        if next(writes, None) is None:
            path.rmdir()

    monkeypatch.setattr(leftovers, "remove_tree", remove)
    remove_for_good(folder)
    assert not folder.exists()


def test_a_full_disk_is_an_error_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    demand_room(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=4096))
    with pytest.raises(WorkerError, match="No space left") as caught:
        demand_room(tmp_path)
    assert "TMPDIR" in caught.value.advice
