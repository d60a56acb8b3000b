"""How many compilers at once: cores, memory, the container's limits and the user each have a say."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from torch_forge.compilation import jobs
from torch_forge.settings import Settings

GIB = 1 << 30


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 64 cores and 100 GiB free, and a container without limits."""
    (tmp_path / "meminfo").write_text("MemTotal: 134217728 kB\nMemAvailable: 104857600 kB\n")
    for name in ("memory.max", "pids.max"):
        (tmp_path / name).write_text("max\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    monkeypatch.setattr(jobs, "CGROUP", tmp_path)
    monkeypatch.setattr(jobs, "MEMINFO", tmp_path / "meminfo")
    return tmp_path


@pytest.mark.parametrize(
    ("files", "max_jobs", "expected"),
    [
        ({}, 0, 64),
        ({}, 3, 3),
        ({}, 1000, 64),
        ({"meminfo": "MemAvailable: 6291456 kB\n"}, 0, 4),
        ({"meminfo": "MemAvailable: 1024 kB\n"}, 0, 1),
        ({"memory.max": str(8 * GIB), "memory.current": str(5 * GIB)}, 0, 2),
        ({"memory.max": str(8 * GIB), "memory.current": str(8 * GIB), "memory.stat": f"inactive_file {3 * GIB}\n"}, 0, 2),
        ({"cpu.max": "350000 100000\n"}, 0, 3),
        ({"cpu.max": "max 100000\n"}, 0, 64),
        ({"cpu.max": "50000 100000\n"}, 0, 1),
        ({"pids.max": "100", "pids.current": "40"}, 0, 5),
    ],
    ids=["cores", "MAX_JOBS", "MAX_JOBS too high", "memory", "hardly any memory", "container memory", "reclaimable cache",
         "cpu quota", "no quota", "half a core", "process limit"],
)  # fmt: skip
def test_bounds(machine: Path, files: dict[str, str], max_jobs: int, expected: int):
    for name, text in files.items():
        (machine / name).write_text(text)
    assert jobs.build_jobs(Settings.resolve({"HOME": "/nonexistent"}, max_jobs=max_jobs)) == expected


def test_old_containers(machine: Path):
    (machine / "memory").mkdir()
    (machine / "memory" / "memory.limit_in_bytes").write_text(str(4 * GIB))
    (machine / "memory" / "memory.usage_in_bytes").write_text(str(GIB))
    assert jobs.available_bytes() == 3 * GIB


def test_affinity_is_respected():
    assert jobs.build_jobs(Settings.resolve({"HOME": "/nonexistent"})) <= len(os.sched_getaffinity(0))


def test_one_that_is_alone_meets_nobody():
    gate = jobs.Gate()
    inside: list[str] = []
    seen: list[tuple[str, ...]] = []
    start = threading.Barrier(9)

    def work(name: str) -> None:
        start.wait()
        for _ in range(20):
            with gate.alone() if name == "alone" else gate.shared():
                inside.append(name)
                if name == "alone":
                    seen.append(tuple(inside))
                inside.remove(name)

    names = ["alone", "alone", *(f"shared{i}" for i in range(7))]
    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [("alone",)] * 40
