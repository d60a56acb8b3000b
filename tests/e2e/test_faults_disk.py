"""A disk that is really full: a file system of a few megabytes, mounted for one process, filled up to the last pages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "support" / "full_disk.py"
MOUNTED = 'mount -t tmpfs -o size=48m,mode=700 tmpfs "$1" && exec "$2" "$3" "$1"'
OWN_MOUNTS = ["unshare", "--user", "--map-root-user", "--mount"]


def run_there(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [*OWN_MOUNTS, "sh", "-c", MOUNTED, "sh", str(folder), *command]
    return subprocess.run(words, env=environ, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("disk")
    if run_there(folder, "true", "").returncode != 0:
        pytest.skip("needs a mount namespace of its own (unprivileged user namespaces)")
    done = run_there(folder, sys.executable, str(PROGRAM))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


pytestmark = [pytest.mark.compiler, pytest.mark.slow]


def test_an_entry_is_stored_whole_or_not_at_all(seen: dict[str, Any]):
    for one in seen["stored"]:
        assert one["here"], one
        assert one["damaged"] == [], one
        assert one["staging"] == [], one
    assert [one["there"] for one in seen["stored"]] == sorted(one["there"] for one in seen["stored"])
    assert not seen["stored"][0]["there"]
    assert seen["stored"][-1]["there"]


def test_a_right_kernel_is_not_rejected_for_want_of_room(seen: dict[str, Any]):
    assert "No space left" in seen["judged"], seen["judged"]
    assert "TMPDIR" in seen["judged"]


def test_tuning_says_so_remembers_nothing_and_goes_on_later(seen: dict[str, Any]):
    forged = seen["forged"]
    for told in forged["told"]:
        assert "No space left" in told, forged
        assert "TMPDIR" in told
    assert forged["entries"] == []
    assert forged["after"]
