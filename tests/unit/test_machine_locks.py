"""Locks end with their holder, however it ends, and a wait ends with the name of the file."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from torch_forge.machine import locks
from torch_forge.records.device import DeviceInfo

HOLD = """
import sys, time
from pathlib import Path
from torch_forge.machine.locks import file_lock
with file_lock(Path(sys.argv[1]), timeout_s=5):
    print("held", flush=True)
    time.sleep(60)
"""
CPU = DeviceInfo("cpu", 0, "a cpu", "avx2", 2, 1 << 30, 1 << 15, 1 << 20, 10.0, 1e9, ())


def test_a_stale_file_does_not_block(tmp_path: Path):
    path = tmp_path / "lock"
    path.write_text("")
    with locks.file_lock(path, timeout_s=1):
        pass


def test_a_wait_ends_and_names_the_file(tmp_path: Path):
    path = tmp_path / "lock"
    with (
        locks.file_lock(path, timeout_s=1),
        pytest.raises(locks.LockError, match=str(path)),
        locks.file_lock(path, timeout_s=0.05),
    ):
        pass


def test_threads_exclude_one_another(tmp_path: Path):
    inside, most = 0, 0
    guard = threading.Lock()

    def work() -> None:
        nonlocal inside, most
        with locks.file_lock(tmp_path / "lock", timeout_s=20):
            with guard:
                inside += 1
                most = max(most, inside)
            with guard:
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_a_killed_holder_releases(tmp_path: Path):
    root = str(Path(locks.__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "lock")], stdout=subprocess.PIPE, env={"PYTHONPATH": root}
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(locks.LockError), locks.file_lock(tmp_path / "lock", timeout_s=0.05):
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
    with locks.file_lock(tmp_path / "lock", timeout_s=1):
        pass


def test_one_lane_for_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with locks.device_lane(CPU):
        with pytest.raises(locks.LockError, match=r"cpu\.lock"), locks.device_lane(CPU, timeout_s=0.05):
            pass
        assert locks.lane_dir().stat().st_mode & 0o777 == 0o700
