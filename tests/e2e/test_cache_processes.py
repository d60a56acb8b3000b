"""The cache between processes: races on an empty directory, kills in the middle of a write, a read-only directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.entries import make_entry, make_files, make_key, workload_id
from torch_forge.caching import upkeep
from torch_forge.caching.journal import Journal
from torch_forge.caching.layers import Cache, Found, Missed
from torch_forge.caching.staging import STAGING
from torch_forge.caching.store import QUARANTINE, DirectoryStore
from torch_forge.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
KEY = make_key()

PREAMBLE = """
import os, sys, time
from pathlib import Path
from tests.support.entries import *
from torch_forge.caching.disk import LocalFiles
from torch_forge.caching.layers import Cache, Found, Missed
from torch_forge.settings import Settings
root = Path(sys.argv[1])
"""


def start(root: Path, script: str, *arguments: str, **options) -> subprocess.Popen[str]:
    """A Python process that runs ``script`` with ``root`` and knows the builders."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + textwrap.dedent(script), str(root), *arguments],
        env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
    )  # fmt: skip


def finish(process: subprocess.Popen[str], timeout_s: float = 60) -> str:
    """Its output, after it ended well."""
    out, err = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, err
    return out


RACE = """
marker = sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
stored = Cache(Settings(cache_dir=root)).put(make_entry(workload_id()), make_files(marker))
assert stored.directory.is_relative_to(root), stored.directory
assert stored.kernel_library.read_bytes() == make_files(marker)["kernel.so"]
assert "torch" not in sys.modules
print(stored.directory)
"""


@pytest.mark.parametrize(
    ("same", "damaged"),
    [(True, False), (True, True), (False, False)],
    ids=["the same entry", "the same entry, damaged", "entries of their own"],
)
def test_eight_processes_store_at_once(tmp_path: Path, same: bool, damaged: bool):
    root = tmp_path / "cache"
    if damaged:
        stored = DirectoryStore(root).put(make_entry(workload_id()), make_files(""))
        stored.kernel_library.write_bytes(b"damaged")
    processes = [start(root, RACE, "" if same else str(number)) for number in range(8)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    directories = {finish(process) for process in processes}
    assert len(directories) == (1 if same else 8)
    assert upkeep.verify(DirectoryStore(root), quarantine=False) == ((), len(directories))
    assert not list((root / STAGING).iterdir())
    found = Cache(Settings(cache_dir=root)).find(KEY, workload_id())
    assert isinstance(found, Found)


KILLED = """
class Slow(LocalFiles):
    # Stops before the operation that the test names, and waits to be killed.
    def __init__(self, stop):
        self.stop, self.done = stop, 0

    def step(self):
        if self.done == self.stop:
            print("here", flush=True)
            time.sleep(60)
        self.done += 1

    def write(self, path, data, mode):
        self.step()
        super().write(path, data[: len(data) // 2] if self.done == self.stop else data, mode)

    def publish(self, staging, final):
        self.step()
        published = super().publish(staging, final)
        self.step()
        return published


Cache(Settings(cache_dir=root), files=Slow(int(sys.argv[2]))).put(make_entry(), make_files())
"""


@pytest.mark.parametrize(
    ("stop", "stored"),
    [(0, False), (3, False), (5, False), (6, True)],
    ids=["before the first file", "between files, one cut", "before the rename, record cut", "after the rename"],
)
def test_a_kill_leaves_a_whole_entry_or_none(tmp_path: Path, stop: int, stored: bool):
    root = tmp_path / "cache"
    process = start(root, KILLED, str(stop))
    assert process.stdout.readline() == "here\n", process.stderr.read()
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    left = list((root / STAGING).iterdir())
    assert len(left) == (0 if stored else 1)
    if not stored:
        assert isinstance(Cache(Settings(cache_dir=root)).find(KEY, workload_id()), Missed)
    Cache(Settings(cache_dir=root)).put(make_entry(), make_files())
    assert isinstance(Cache(Settings(cache_dir=root)).find(KEY, workload_id()), Found)
    assert upkeep.verify(DirectoryStore(root), quarantine=False) == ((), 1)
    assert not list((root / STAGING).iterdir()), "the next put has swept it"
    assert not (root / QUARANTINE).exists()


def test_a_killed_tuning_run_goes_on_where_it_stopped(tmp_path: Path):
    root = tmp_path / "cache"
    script = """
    journal = Cache(Settings(cache_dir=root)).journal(make_key(), workload_id())
    for number in range(1000):
        if make_trial(number).candidate.digest in journal.finished:
            print("skipped", number, flush=True)
            continue
        journal.append(make_trial(number))
        print("ran", number, flush=True)
        if number == int(sys.argv[2]):
            break
    if sys.argv[3] == "wait":
        time.sleep(60)
    """
    first = start(root, script, "4", "wait")
    assert [first.stdout.readline() for _ in range(5)] == [f"ran {n}\n" for n in range(5)]
    first.kill()
    first.communicate(timeout=60)
    second = finish(start(root, script, "6", "end")).splitlines()
    assert second == [*(f"skipped {n}" for n in range(5)), "ran 5", "ran 6"]
    (path,) = root.rglob("*.jsonl")
    assert len(Journal(path).trials) == 7


READ_ONLY = """
if os.geteuid() == 0 and sys.argv[2] == "first":
    # The superuser writes anywhere; without CAP_DAC_OVERRIDE in the bounding set it does not after the next exec.
    import ctypes
    PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1
    assert ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0) == 0
    os.execv(sys.executable, [sys.executable, "-c", sys.orig_argv[2], str(root), "second"])

cache = Cache(Settings(cache_dir=root))
assert isinstance(cache.find(make_key(), workload_id(1)), Found)
for number in (2, 3):
    stored = cache.put(make_entry(workload_id(number)), make_files())
    assert stored.kernel_library.exists() and not stored.directory.is_relative_to(root)
    assert isinstance(cache.find(make_key(), workload_id(number)), Found)
print(stored.directory)
"""


def test_a_read_only_cache_is_read_and_costs_one_warning(tmp_path: Path):
    root = tmp_path / "cache"
    Cache(Settings(cache_dir=root)).put(make_entry(workload_id(1)), make_files())
    directories = [root, *(p for p in root.rglob("*") if p.is_dir())]
    for directory in directories:
        directory.chmod(0o555)
    try:
        out, err = start(root, READ_ONLY, "first").communicate(timeout=60)
    finally:
        for directory in directories:
            directory.chmod(0o700)
    assert err.count("results end with this process: Permission denied") == 1, err
    assert not Path(out.strip()).exists(), "the process has cleaned up after itself"
    assert [located.name.partition("-")[0] for located in upkeep.walk(DirectoryStore(root))] == [workload_id(1)]


TUNE = """
import torch, torch_forge
from tests.support.tuning import OneRegion, every_right_kernel_wins
model, x = OneRegion(), torch.randn(OneRegion.SHAPE)
settings = Settings.resolve(cache_dir=root, budget_s=600.0, progress="off", peers="eager")
print("ready", flush=True)
sys.stdin.readline()
with every_right_kernel_wins():
    result = torch_forge.autotune(model, x, settings=settings)
torch.testing.assert_close(model(x), OneRegion()(x), rtol=1e-4, atol=1e-5)
assert not result.report.notes, result.report.notes
(region,) = result.report.regions
print(region.verdict, region.from_cache)
"""


@pytest.mark.compiler
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_eight_processes_tune_one_model_on_an_empty_cache(tmp_path: Path):
    root = tmp_path / "cache"
    with ExitStack() as stack:
        processes = [stack.enter_context(start(root, TUNE)) for _ in range(8)]
        for process in processes:
            stack.callback(process.kill)
        for process in processes:
            assert process.stdout.readline() == "ready\n", process.stderr.read()
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        assert {finish(process, timeout_s=1000).split()[0] for process in processes} == {"installed"}
    problems, entries = upkeep.verify(DirectoryStore(root), quarantine=False)
    assert problems == ()
    assert 1 <= entries <= 8
    assert not list((root / STAGING).iterdir())
    with start(root, TUNE) as last:
        assert last.stdout.readline() == "ready\n"
        assert last.communicate("go\n", timeout=100)[0] == "installed True\n"
