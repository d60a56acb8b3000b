"""Compilers that hang or die, memory and clocks that fail: a candidate has its verdict, the machine's own trouble none."""

from __future__ import annotations

import ast
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support import fault_kernels
from tests.support.entries import make_entry, make_files, make_key, workload_id
from tests.support.fault_kernels import fake_compiler
from tests.support.kernels import HEAD, build, f32, lowered, problem
from torch_forge.caching import upkeep
from torch_forge.caching.layers import Cache, Found, Missed
from torch_forge.caching.staging import STAGING, leftovers, staging_path
from torch_forge.caching.store import DirectoryStore
from torch_forge.compilation import build as building
from torch_forge.errors import ToolchainError
from torch_forge.machine.workers import TaskDone, WorkerPool
from torch_forge.records.kernels import BuildFailed, Built, Candidate, Origin
from torch_forge.records.outcomes import Crashed, Passed, TimedOut
from torch_forge.search.forge import Forged, forge_problem
from torch_forge.search.workshop import Deadline, Workshop
from torch_forge.settings import Settings
from torch_forge.validation.judge import Judge

pytestmark = pytest.mark.compiler
PACKAGE = Path(__file__).resolve().parents[2] / "torch_forge"
COPY = problem(lambda x: x * 1, f32(16, 64), name="copy")
DOUBLE = problem(lambda x: torch.tanh(x) * 2, f32(16, 64), name="double")
SOURCE = HEAD + "LAUNCH { memcpy(OUT(0), IN(0), count(in[0]) * 4); return FORGE_OK; }\n"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    settings = Settings.resolve({}, cache_dir=tmp_path_factory.mktemp("cache"), peers="eager", trial_timeout_s=60.0)
    with Workshop.open("cpu", settings) as opened:
        assert opened.can_build()
        yield opened


@pytest.fixture
def candidate() -> Candidate:
    return build("memcpy(OUT(0), IN(0), count(in[0]) * 4);", COPY).candidate


def compile_with(shop: Workshop, candidate: Candidate, tmp_path: Path, body: str, limit_s: float = 60.0) -> building.Outcome:
    assert shop.toolchain is not None
    cxx = fake_compiler(tmp_path / "tools" / "g++", shop.toolchain.cxx, body)
    toolchain = replace(shop.toolchain, cxx=cxx)
    try:
        return building.build(candidate, toolchain, shop.pool, staging_root=tmp_path / "staging", timeout_s=limit_s)
    finally:
        assert list((tmp_path / "staging").iterdir()) == []
        assert descendants() == [], "a compiler is left"


def descendants() -> list[str]:
    """Programs below this process that are no Python, once they had time to go."""
    for _ in range(200):
        found = [name for pid in _children(os.getpid()) if not (name := _name(pid)).startswith("python")]
        if not found:
            return []
        time.sleep(0.02)
    return found


def _children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            own = [int(p) for p in task.read_text().split()]
        except OSError:
            continue
        found += [*own, *(grandchild for p in own for grandchild in _children(p))]
    return found


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "python, gone"


def test_a_compiler_that_hangs(shop: Workshop, candidate: Candidate, tmp_path: Path):
    assert isinstance(compile_with(shop, candidate, tmp_path, fault_kernels.HANGS, 2.0), TimedOut)


@pytest.mark.parametrize(
    ("body", "statuses"),
    [
        pytest.param(fault_kernels.SEGFAULTS, (1, 139), id="segfaults"),  # some ninjas do not say the status
        pytest.param(fault_kernels.IS_KILLED, (-9,), id="is killed, twice"),
        pytest.param(fault_kernels.SAYS_NOTHING, (1,), id="says nothing"),
    ],
)
def test_a_compiler_that_dies(shop: Workshop, candidate: Candidate, tmp_path: Path, body: str, statuses: tuple[int, ...]):
    failed = compile_with(shop, candidate, tmp_path, body)
    assert isinstance(failed, BuildFailed)
    assert failed.exit_status in statuses


def test_a_compiler_that_prints_megabytes(shop: Workshop, candidate: Candidate, tmp_path: Path):
    failed = compile_with(shop, candidate, tmp_path, fault_kernels.PRINTS_MEGABYTES)
    assert isinstance(failed, BuildFailed)
    assert len(failed.log) < 5 << 20
    assert "everything is wrong" in failed.log


@pytest.mark.parametrize("percent", [0, 1, 50])
def test_a_compiler_that_writes_half_a_library(shop: Workshop, candidate: Candidate, tmp_path: Path, percent: int):
    body = fault_kernels.CUTS_ITS_OUTPUT.replace("{percent}", str(percent))
    assert isinstance(compile_with(shop, candidate, tmp_path, body), BuildFailed | Crashed)


def test_a_compiler_that_writes_nothing_and_calls_it_done(shop: Workshop, candidate: Candidate, tmp_path: Path):
    with pytest.raises(ToolchainError):
        compile_with(shop, candidate, tmp_path, fault_kernels.WRITES_NO_OUTPUT)


def test_after_all_of_that_the_same_workers_build(shop: Workshop, candidate: Candidate, tmp_path: Path):
    assert shop.toolchain is not None
    built = building.build(candidate, shop.toolchain, shop.pool, staging_root=tmp_path, timeout_s=60)
    assert isinstance(built, Built), built


def forged(shop: Workshop) -> Forged:
    return forge_problem(DOUBLE, lowered(DOUBLE), shop, deadline=Deadline.after(300), against_inductor=False)


def nothing_is_remembered(shop: Workshop) -> bool:
    assert shop.cache is not None
    key = shop.key(DOUBLE)
    nothing_found = isinstance(Cache(shop.settings).find(key, DOUBLE.workload), Missed)
    return nothing_found and shop.cache.journal(key, DOUBLE.workload).trials == ()


@pytest.mark.parametrize("body", [fault_kernels.HANGS, fault_kernels.IS_KILLED], ids=["hangs", "is killed"])
def test_what_a_bad_compiler_has_spoilt_is_tried_again_by_the_next_run(
    shop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
):
    assert shop.toolchain is not None
    cxx = fake_compiler(tmp_path / "g++", shop.toolchain.cxx, body)
    monkeypatch.setattr(shop, "toolchain", replace(shop.toolchain, cxx=cxx))
    monkeypatch.setattr(shop, "settings", replace(shop.settings, build_timeout_s=2.0))
    assert forged(shop).result.verdict == "failed"
    assert nothing_is_remembered(shop)


@pytest.mark.parametrize(
    ("origin", "remembered"), [(Origin.TEMPLATE, False), (Origin.LLM, True)], ids=["a template", "a model's kernel"]
)
def test_a_worker_that_the_kernel_s_memory_killer_got(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch, origin: Origin, remembered: bool
):
    """A template's kernel is right wherever it can run at all; a foreign one is to blame for what it takes."""
    killed = build("syscall(62 /* kill */, getpid(), 9);", DOUBLE).candidate
    loop = lowered(DOUBLE)
    assert loop is not None
    killed = replace(killed, origin=origin, program=loop.program.digest)
    monkeypatch.setattr("torch_forge.search.trials.candidates", lambda *_: [killed])
    monkeypatch.setattr("torch_forge.search.trials.refused_source", lambda *_: None)
    monkeypatch.setattr("torch_forge.search.trials.refused_binary", lambda *_: None)
    result = forged(shop).result
    assert (result.verdict, dict(result.outcomes)) == ("failed", {"crashed": 1})
    assert nothing_is_remembered(shop) is not remembered


def test_a_kernel_that_allocates_without_bound(shop: Workshop):
    judge = Judge(COPY, lowered=lowered(COPY), device=shop.device, pool=shop.pool, settings=shop.settings, seed=1)
    verdict = judge.check(build(fault_kernels.ALLOCATES, COPY))
    assert isinstance(verdict, Crashed), verdict
    assert verdict.signal == 6
    honest = judge.check(build(fault_kernels.ALLOCATES.replace("k < 64", "k < 1"), COPY))
    assert isinstance(honest, Passed), honest


def test_a_file_without_end(tmp_path: Path):
    """It is cut off long before a disk is full; ``FILE_BYTES`` says when."""
    root = str(Path(__file__).resolve().parents[2])
    with WorkerPool(python_path=[root], scratch_root=tmp_path) as own:
        for confine in (None, own.confinement()):
            done = own.run("tests.support.worker_tasks:grow", None, timeout_s=60, confine=confine)
            assert isinstance(done, TaskDone), done
            assert done.value == {"error": "File too large", "bytes": 1}


@pytest.mark.parametrize("step_s", [-1e9, -7200.0, 7200.0, 1e9], ids=["back", "hours back", "hours on", "on"])
def test_a_clock_that_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_s: float):
    """While entries are written, and between them."""
    root = tmp_path / "cache"
    running = staging_path(root)
    running.mkdir(parents=True)
    key, deadline = make_key(), Deadline.after(3600)
    Cache(Settings(cache_dir=root)).put(make_entry(workload_id(0)), make_files())
    now, now_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: now() + step_s)
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() + int(step_s * 1e9))
    assert leftovers(root) == [], "a put that is under way is no leftover, whatever the clock says"
    cache = Cache(Settings(cache_dir=root))
    cache.put(make_entry(workload_id(1)), make_files())
    assert all(isinstance(cache.find(key, workload_id(n)), Found) for n in (0, 1))
    assert upkeep.verify(DirectoryStore(root), quarantine=False) == ((), 2)
    assert list((root / STAGING).iterdir()) == [running]
    assert not deadline.passed


WALL_CLOCK = {
    "caching/layers.py": "the date of an entry; of two that serve a workload the newer is tried first, either is right",
    "caching/staging.py": "names; and how old what another host left is, in hours",
    "caching/store.py": "names in the quarantine",
    "caching/upkeep.py": "pruning by age, which a user asks for",
    "cli/cache.py": "how old an entry is, for people",
    "generation/llm/answers.py": "a date that a server sent",
    "pipeline.py": "the date of a report",
    "suites/models.py": "the date of a result",
    "suites/run.py": "the date of a result",
}
"""Where the wall clock may be read, and why a step does no harm there. Limits and durations are monotonic."""


def test_no_limit_and_no_duration_depends_on_the_wall_clock():
    readers = {str(p.relative_to(PACKAGE)) for p in PACKAGE.rglob("*.py") if _reads_wall_clock(p)}
    assert readers == set(WALL_CLOCK)


def _reads_wall_clock(path: Path) -> bool:
    calls = {ast.unparse(n) for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Attribute)}
    return bool(calls & {"time.time", "time.time_ns", "datetime.now", "datetime.datetime.now", "datetime.utcnow"})
