"""Commands run to their end or to their limit, with everything they started."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from torch_forge.machine.process import run


@pytest.mark.parametrize(
    ("script", "status", "stdout", "stderr"),
    [
        ("echo out; echo err >&2", 0, "out\n", "err\n"),
        ("exit 3", 3, "", ""),
        ("kill -9 $$", -signal.SIGKILL, "", ""),
        ("cat", 0, "", ""),
        (r"printf '\377'", 0, "\ufffd", ""),
    ],
    ids=["streams", "status", "signal", "no input", "not utf-8"],
)
def test_what_a_command_left(script: str, status: int, stdout: str, stderr: str):
    done = run(["/bin/sh", "-c", script], timeout_s=20)
    assert (done.exit_status, done.stdout, done.stderr, done.timed_out) == (status, stdout, stderr, False)
    assert done.ok == (status == 0)


def test_a_program_that_is_not_there_is_a_value():
    done = run(["/nonexistent/g++"], timeout_s=5)
    assert (done.exit_status, done.ok) == (127, False)
    assert "/nonexistent/g++: No such file" in done.stderr


def test_environment_and_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TAKEN", "1")
    done = run(["/bin/sh", "-c", "pwd; echo $GIVEN-$TAKEN"], timeout_s=5, cwd=tmp_path, env={"GIVEN": "2", "TAKEN": None})
    assert done.stdout.split() == [str(tmp_path), "2-"]
    assert os.environ["TAKEN"] == "1"


def test_the_limit_kills_grandchildren_that_hold_the_pipes(tmp_path: Path):
    script = f"trap '' TERM; sleep 600 & echo $! > {tmp_path}/pid; wait"
    done = run(["/bin/sh", "-c", script], timeout_s=0.5)
    assert done.timed_out
    assert not done.ok
    assert gone(int((tmp_path / "pid").read_text()))


def test_in_the_callers_group_only_the_command_is_killed_and_pipes_that_others_hold_are_not_waited_for(tmp_path: Path):
    script = f"echo begun; sleep 60 & echo $! > {tmp_path}/pid; wait"
    done = run(["/bin/sh", "-c", script], timeout_s=0.5, own_group=False)
    child = int((tmp_path / "pid").read_text())
    try:
        assert (done.timed_out, done.stdout) == (True, "begun\n")
        assert os.getpgid(child) == os.getpgid(0)
    finally:
        os.kill(child, signal.SIGKILL)


def gone(pid: int) -> bool:
    """Whether a process ends within seconds; a zombie has ended."""
    for _ in range(200):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False
