"""The worker pool's contract: whatever a task does to its process, the caller gets a value and the pool goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from torch_forge.errors import WorkerError
from torch_forge.machine.workers import TaskDied, TaskDone, TaskExpired, WorkerPool

SUPPORT = str(Path(__file__).resolve().parents[1] / "support")
ROOT = str(Path(__file__).resolve().parents[2])


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerPool]:
    with WorkerPool(python_path=[SUPPORT], scratch_root=tmp_path_factory.mktemp("scratch")) as shared:
        yield shared


def run(pool: WorkerPool, function: str, payload: Any = None, **options: Any) -> TaskDone | TaskDied | TaskExpired:
    return pool.run(f"worker_tasks:{function}", payload, **{"timeout_s": 60.0, **options})


def parent_of(pool: WorkerPool) -> int:
    done = run(pool, "facts")
    assert isinstance(done, TaskDone)
    return int(done.value["parent"])


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def gone(pid: int) -> bool:
    """Whether a process ends within seconds; a zombie has ended."""
    for _ in range(300):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize(
    "payload", [None, {"a": [1, 2.5, "x", True]}, "\u00e9" * 10, ["x" * 1000] * 3000], ids=["none", "nested", "text", "3 MB"]
)
def test_a_result_comes_back_whole(pool: WorkerPool, payload: Any):
    done = run(pool, "echo", payload)
    assert isinstance(done, TaskDone)
    assert done.value == payload
    assert done.log == "said on stdout\nsaid on stderr\n"
    assert done.scratch.is_dir()
    assert done.seconds > 0


ENDINGS: dict[str, tuple[Any, tuple[int, int, str]]] = {
    "raises": (None, (0, 1, "ValueError: no such layout")),
    "segfault": (None, (signal.SIGSEGV, -signal.SIGSEGV, "")),
    "abort": (None, (signal.SIGABRT, -signal.SIGABRT, "")),
    "recurse": (None, (signal.SIGSEGV, -signal.SIGSEGV, "")),
    "exit_early": (0, (0, 0, "")),
    "sys_exit": (3, (0, 3, "")),
    "scribble": (None, (0, 0, "")),
    "close_everything": (None, (0, 70, "")),
}


@pytest.mark.parametrize("function", ENDINGS)
def test_a_task_that_ends_badly_is_a_value(pool: WorkerPool, function: str):
    payload, expected = ENDINGS[function]
    died = run(pool, function, payload)
    assert isinstance(died, TaskDied)
    assert (died.signal, died.exit_status, died.exception) == expected
    assert isinstance(run(pool, "echo"), TaskDone)


def test_the_evidence_is_in_the_log(pool: WorkerPool):
    assert "Segmentation fault" in run(pool, "segfault").log
    assert 'raise ValueError("no such layout")' in run(pool, "raises").log


@pytest.mark.parametrize(
    ("function", "payload", "exception"),
    [
        ("too_large", (64 << 20) + 1, "ValueError: "),
        ("not_plain", None, "TypeError: "),
        ("no_such_function", None, "AttributeError: "),
    ],
)
def test_what_cannot_be_a_result(pool: WorkerPool, function: str, payload: Any, exception: str):
    died = run(pool, function, payload)
    assert isinstance(died, TaskDied)
    assert died.exception.startswith(exception)


def test_a_module_that_is_not_there(pool: WorkerPool):
    died = pool.run("no_such_module:f", None, timeout_s=60)
    assert isinstance(died, TaskDied)
    assert died.exception == "ModuleNotFoundError: No module named 'no_such_module'"


def test_memory_limit(pool: WorkerPool):
    assert isinstance(run(pool, "allocate", 1 << 20, memory_bytes=16 << 30), TaskDone)
    died = run(pool, "allocate", 32 << 30, memory_bytes=16 << 30)
    assert isinstance(died, TaskDied)
    assert died.exception.startswith("MemoryError")


def test_the_limit_kills_the_task_and_what_it_started(pool: WorkerPool, tmp_path: Path):
    expired = run(pool, "hang", str(tmp_path / "pids"), timeout_s=2.0)
    assert expired == TaskExpired(2.0, "")
    assert all(gone(int(pid)) for pid in (tmp_path / "pids").read_text().split())


def test_what_a_task_leaves_running_is_killed(pool: WorkerPool):
    done = run(pool, "leave_grandchild")
    assert isinstance(done, TaskDone)
    assert gone(done.value)


def test_where_a_task_runs(pool: WorkerPool, tmp_path: Path):
    import torch

    done = run(pool, "facts", scratch=tmp_path / "here", env={"GIVEN": "1", "PATH": None})
    assert isinstance(done, TaskDone)
    facts = done.value
    assert facts["cwd"] == facts["scratch"] == str(done.scratch) == str(tmp_path / "here")
    assert facts["group"] == facts["pid"] != os.getpgrp()
    assert facts["environ"]["GIVEN"] == "1"
    assert facts["environ"]["TMPDIR"] == facts["scratch"]
    assert "PATH" not in facts["environ"]
    assert facts["threads"] == torch.get_num_threads()
    assert facts["cuda"] is False
    assert len(facts["descriptors"]) == 5  # streams, the task's socket, the listing itself
    assert facts["path"][0] == SUPPORT
    assert "" not in facts["path"]


def test_secrets_stay_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SOME_API_KEY", "sk-123")
    monkeypatch.setenv("OMP_SCHEDULE", "static")
    with WorkerPool(python_path=[SUPPORT], scratch_root=tmp_path) as own:
        done = run(own, "facts")
        assert isinstance(done, TaskDone)
        assert "SOME_API_KEY" not in done.value["environ"]
        assert done.value["environ"]["OMP_SCHEDULE"] == "static"
        initial = Path(f"/proc/{done.value['parent']}/environ").read_bytes()
        assert b"sk-123" not in initial
        root = done.scratch.parent
    assert not root.exists()
    assert gone(done.value["parent"])
    with pytest.raises(WorkerError, match="closed"):
        run(own, "echo")


@pytest.mark.parametrize("visible", ["MIG-1234abcd", "GPU-0f0f0f0f", "", "-1"], ids=["mig", "uuid", "empty", "none"])
def test_visible_devices_of_any_form(pool: WorkerPool, visible: str):
    done = run(pool, "device_facts", env={"CUDA_VISIBLE_DEVICES": visible, "PYTHONPATH": ROOT})
    assert isinstance(done, TaskDone)
    assert (done.value["cpu"], done.value["touched"]) == ("cpu", False)
    assert "CUDA" in done.value["gpu"]


def test_many_tasks_leave_nothing(pool: WorkerPool):
    parent = parent_of(pool)
    before = (descriptors(os.getpid()), descriptors(parent))
    for function in ["echo", "segfault", "exit_early", "leave_grandchild"] * 25:
        run(pool, function, 0)
    assert parent_of(pool) == parent
    _wait_for(lambda: descriptors(parent) <= before[1])  # the last is closed just after its end was told
    assert descriptors(os.getpid()) <= before[0]
    assert Path(f"/proc/{parent}/task/{parent}/children").read_text().split() == []


def test_many_threads_at_once(pool: WorkerPool):
    functions = ["echo", "raises", "segfault", "exit_early"] * 6
    with ThreadPoolExecutor(8) as threads:
        outcomes = list(threads.map(lambda f: run(pool, f, 7 if f == "exit_early" else f), functions))
    for function, outcome in zip(functions, outcomes, strict=True):
        if function == "echo":
            assert isinstance(outcome, TaskDone)
            assert outcome.value == "echo"
        else:
            assert isinstance(outcome, TaskDied)
            assert outcome.exit_status == {"raises": 1, "segfault": -signal.SIGSEGV, "exit_early": 7}[function]


def test_an_exception_in_the_caller_kills_the_task(pool: WorkerPool, tmp_path: Path):
    """Ctrl-C while a task runs."""

    def interrupt() -> None:
        while not (tmp_path / "pids").exists():
            time.sleep(0.02)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        run(pool, "hang", str(tmp_path / "pids"))
    while not (text := (tmp_path / "pids").read_text()):
        time.sleep(0.02)
    assert all(gone(int(pid)) for pid in text.split())
    assert isinstance(run(pool, "echo"), TaskDone)


def test_a_task_that_kills_the_parent_is_to_blame(pool: WorkerPool):
    parent = parent_of(pool)
    died = run(pool, "kill_parent")
    assert isinstance(died, TaskDied)
    assert (died.signal, "killed, twice" in died.exception) == (signal.SIGKILL, True)
    assert parent_of(pool) != parent  # and the next task gets a new one


def test_a_preload_that_fails_says_why(tmp_path: Path):
    with (
        WorkerPool(preload=["no_such_module"], scratch_root=tmp_path) as own,
        pytest.raises(WorkerError, match="no_such_module"),
    ):
        own.run("worker_tasks:echo", None, timeout_s=60)


USER_PROGRAM = """
import os, sys, threading
sys.path.insert(0, sys.argv[1])
import torch
from torch_forge.machine.workers import TaskDone, WorkerPool
torch.ones(1 << 20).exp().sum()  # the user's own OpenMP pool
threading.Thread(target=lambda: threading.Event().wait(600), daemon=True).start()
pool = WorkerPool(python_path=[sys.argv[2]])
assert isinstance(pool.run("worker_tasks:facts", None, timeout_s=60), TaskDone)
{ending}
"""
FORKS = """
child = os.fork()
if child == 0:
    # A forked data loader gets a pool of its own, and its end does not end ours.
    done = pool.run("worker_tasks:echo", "in the fork", timeout_s=60)
    pool.close()
    os._exit(0 if isinstance(done, TaskDone) and done.value == "in the fork" else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert isinstance(pool.run("worker_tasks:echo", None, timeout_s=60), TaskDone)
"""
HANGS = 'pool.run("worker_tasks:hang", sys.argv[3], timeout_s=600)'


@pytest.mark.parametrize("ending", [FORKS, HANGS], ids=["forks", "is killed"])
def test_a_whole_program(tmp_path: Path, ending: str):
    """Read from a pipe, with threads and OpenMP in use; it forks and ends, or is killed while a task runs."""
    program = USER_PROGRAM.format(ending=ending)
    command = [sys.executable, "-W", "ignore", "-", ROOT, SUPPORT, str(tmp_path / "pids")]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd="/", env=env, text=True) as process:
        assert process.stdin is not None
        process.stdin.write(program)
        process.stdin.close()
        if ending == HANGS:
            _wait_for(lambda: (tmp_path / "pids").exists() and len((tmp_path / "pids").read_text().split()) == 2)
            process.kill()
        assert process.wait() == (-signal.SIGKILL if ending == HANGS else 0)
    if ending == HANGS:
        assert all(gone(int(pid)) for pid in (tmp_path / "pids").read_text().split())
    _wait_for(lambda: not list(tmp_path.glob("torch_forge-*")))


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
