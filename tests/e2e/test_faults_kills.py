"""A tuning run that is killed at random moments and started again: nothing lost, nothing wrong, nothing left.

``scripts/kills.py`` does it and says what has to hold; here it runs on one tiny problem, without the last looks at winners.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KILLS = 8


@pytest.mark.compiler
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_that_is_killed_again_and_again_ends_as_if_it_had_not_been(tmp_path: Path):
    command = [sys.executable, str(ROOT / "scripts" / "kills.py"), "--kills", str(KILLS), "--problems", "1", "--brief"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["problems"] == []
    assert report["stored"] == 1
    assert report["finished"] >= 1
    assert len(report["kills"]) == KILLS
