"""Files whole or absent, and publishing a directory on filesystems that answer late or wrongly."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path

import pytest

from torch_forge.machine import files


@pytest.mark.parametrize("content", [b"\x00\xff", "text \u00e9", ""], ids=["bytes", "text", "empty"])
def test_atomic_write_replaces_the_file_and_leaves_nothing_else(tmp_path: Path, content: bytes | str):
    target = tmp_path / "entry.json"
    target.write_text("old")
    files.atomic_write(target, content)
    assert target.read_bytes() == (content if isinstance(content, bytes) else content.encode())
    assert os.listdir(tmp_path) == ["entry.json"]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    target = tmp_path / "entry.json"
    target.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.atomic_write(target, "new")
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["entry.json"]


def test_readers_never_see_half_a_file(tmp_path: Path):
    target = tmp_path / "entry"
    texts = {"a" * 50_000, "b" * 50_000}
    files.atomic_write(target, min(texts))
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for text in texts:
                files.atomic_write(target, text)

    writer = threading.Thread(target=write)
    writer.start()
    seen = {target.read_text() for _ in range(50)}
    stop.set()
    writer.join()
    assert seen <= texts


def test_private_dir_makes_only_what_is_missing(tmp_path: Path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o775)
    made = files.private_dir(shared / "a" / "b")
    assert stat.S_IMODE(shared.stat().st_mode) == 0o775
    assert [stat.S_IMODE(p.stat().st_mode) for p in (made, made.parent)] == [0o700, 0o700]
    assert files.private_dir(made) == made


def test_private_dir_refuses_a_file(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        files.private_dir(tmp_path / "file")


def test_sha256_file(tmp_path: Path):
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    assert files.sha256_file(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    folder = tmp_path / "staging"
    folder.mkdir()
    (folder / "who").write_text("ours")
    return folder


def test_the_first_writer_publishes(tmp_path: Path, staging: Path):
    assert files.replace_dir(staging, tmp_path / "final") is True
    assert (tmp_path / "final" / "who").read_text() == "ours"
    assert not staging.exists()


def test_the_second_writer_keeps_what_is_there(tmp_path: Path, staging: Path):
    final = tmp_path / "final"
    final.mkdir()
    (final / "who").write_text("theirs")
    assert files.replace_dir(staging, final) is False
    assert (final / "who").read_text() == "theirs"
    assert not staging.exists()


@pytest.mark.parametrize("number", [errno.EBUSY, errno.ESTALE, errno.ENOENT], ids=errno.errorcode.get)
def test_a_rename_that_worked_but_answered_with_an_error(tmp_path: Path, staging: Path, monkeypatch, number: int):
    real = os.rename

    def rename(source: Path, target: Path) -> None:
        real(source, target)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "rename", rename)
    assert files.replace_dir(staging, tmp_path / "final") is True
    assert (tmp_path / "final" / "who").read_text() == "ours"


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EACCES], ids=errno.errorcode.get)
def test_a_rename_that_did_not_work_is_an_error(tmp_path: Path, staging: Path, monkeypatch, number: int):
    def rename(source: Path, target: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(OSError, match=os.strerror(number)):
        files.replace_dir(staging, tmp_path / "final")
    assert staging.exists()
