"""Each layer of the sandbox against what it must stop: worked without it, refused with it alone. And honest work inside."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.contract.test_workers import ENDINGS, ROOT, SUPPORT, gone
from torch_forge.compilation.build import TASKS, build
from torch_forge.errors import SandboxError
from torch_forge.machine.sandbox import limits, lock, seccomp, syscalls
from torch_forge.machine.toolchain import Toolchain, find_toolchain
from torch_forge.machine.workers import TaskDied, TaskDone, TaskExpired, WorkerPool
from torch_forge.records import sandbox as layer
from torch_forge.records.kernels import BuildFailed, Built, Candidate, Config, Origin
from torch_forge.records.sandbox import Confinement
from torch_forge.settings import Settings

WORKED = "worked"


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerPool]:
    root = tmp_path_factory.mktemp("scratch")
    with WorkerPool(python_path=[SUPPORT, ROOT], scratch_root=root, preload=[TASKS]) as shared:
        yield shared


def run(
    pool: WorkerPool, function: str, payload: Any = None, confine: Confinement | None = None, **options: Any
) -> TaskDone | TaskDied | TaskExpired:
    return pool.run(f"sandbox_tasks:{function}", payload, confine=confine, **{"timeout_s": 60.0, **options})


def value(pool: WorkerPool, function: str, payload: Any = None, confine: Confinement | None = None, **options: Any) -> Any:
    done = run(pool, function, payload, confine, **options)
    assert isinstance(done, TaskDone), done
    return done.value


def whole(pool: WorkerPool, **options: Any) -> Confinement:
    """Everything that works here; the first layers alone are not what these tests are about."""
    confinement = pool.confinement(**options)
    assert confinement is not None
    return confinement


def only(pool: WorkerPool, *layers: str, **options: Any) -> Confinement:
    """These layers and what they cannot be without; skips where the machine has not got them."""
    report = pool.sandbox_report()
    needed = {
        layer.NETWORK: (layer.USER, layer.PIDS),
        layer.IPC: (layer.USER, layer.PIDS),
        layer.ROOT: (layer.USER, layer.PIDS),
        layer.PROC: (layer.USER, layer.PIDS, layer.ROOT),
        layer.PROCESSES: (layer.USER, layer.PIDS, layer.ROOT, layer.PROC),
        layer.PIDS: (layer.USER,),
        layer.FILES: (layer.PRIVILEGES,),
        layer.TCP: (layer.PRIVILEGES,),
        layer.SIGNALS: (layer.PRIVILEGES,),
        layer.SECCOMP: (layer.PRIVILEGES,),
    }
    wanted = {*layers, *(below for name in layers for below in needed.get(name, ()))}
    for name in wanted & set(report.missing):
        pytest.skip(f"no {name} here: {report.missing[name]}")
    return replace(whole(pool, **options), layers=tuple(name for name in layer.LAYERS if name in wanted))


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def bystander() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


def refused(pool: WorkerPool, function: str, payload: Any, layers: tuple[str, ...], **options: Any) -> None:
    """Each of the layers alone refuses, all together do, and nothing else does."""
    free = Confinement((), **options)
    assert value(pool, function, payload, free) == WORKED
    for name in layers:
        assert value(pool, function, payload, only(pool, name, **options)) != WORKED, name
    assert value(pool, function, payload, whole(pool, **options)) != WORKED


def test_the_network(pool: WorkerPool, listener: int):
    refused(pool, "connect", listener, (layer.NETWORK, layer.TCP, layer.SECCOMP))


def test_abstract_sockets(pool: WorkerPool):
    name = f"torch_forge-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{name}")
        server.listen()
        refused(pool, "connect_abstract", name, (layer.NETWORK, layer.SIGNALS, layer.SECCOMP))


def test_named_sockets_of_other_programs(pool: WorkerPool, tmp_path: Path):
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(path)
        refused(pool, "send_to_named_socket", path, (layer.ROOT, layer.SECCOMP))


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("sk-123")
    return path


@pytest.mark.parametrize("function", ["read", "write", "truncate"])
def test_files_outside(pool: WorkerPool, secret: Path, function: str):
    refused(pool, function, str(secret), (layer.ROOT, layer.FILES))


def test_modes_of_files_outside(pool: WorkerPool, secret: Path):
    refused(pool, "chmod", str(secret), (layer.ROOT, layer.SECCOMP))


def test_new_files_beside_the_scratch_folder(pool: WorkerPool, tmp_path: Path):
    (tmp_path / "scratch").mkdir()
    written = value(pool, "write", str(tmp_path / "new"), whole(pool), scratch=tmp_path / "scratch")
    assert written != WORKED
    assert [p.name for p in tmp_path.iterdir()] == ["scratch"]
    assert value(pool, "write", str(tmp_path / "scratch" / "new"), whole(pool), scratch=tmp_path / "scratch") == WORKED
    assert (tmp_path / "scratch" / "new").read_text() == "spoiled"


def test_the_toolchain_cannot_be_changed(pool: WorkerPool):
    import torch

    assert value(pool, "read", torch.__file__, whole(pool)) == WORKED
    assert value(pool, "write", f"{os.path.dirname(torch.__file__)}/torch_forge_test", whole(pool)) != WORKED
    assert not os.path.exists(f"{os.path.dirname(torch.__file__)}/torch_forge_test")


@pytest.mark.parametrize("file", ["environ", "cmdline", "maps", "status"])
def test_the_judge_s_own_proc(pool: WorkerPool, file: str):
    refused(pool, "read", f"/proc/{os.getpid()}/{file}", (layer.PROC, layer.FILES))


def test_other_processes(pool: WorkerPool):
    refused(pool, "see_processes", None, (layer.PROC,))


def test_settings_of_the_kernel(pool: WorkerPool):
    """Root may write them by its user number alone, in whatever namespace."""
    if os.getuid() != 0:
        pytest.skip("only root could")
    refused(pool, "write_sysctl", None, (layer.ROOT, layer.FILES))


def test_signals(pool: WorkerPool, bystander: int):
    refused(pool, "send_signal", bystander, (layer.PIDS, layer.SIGNALS, layer.SECCOMP))


def test_signals_to_the_judge(pool: WorkerPool):
    assert value(pool, "send_signal", os.getpid(), whole(pool)) != WORKED


def test_tracing(pool: WorkerPool, bystander: int):
    refused(pool, "trace", bystander, (layer.PIDS, layer.SECCOMP))


def test_shared_memory(pool: WorkerPool):
    libc = ctypes.CDLL(None)
    number = libc.shmget(0, 4096, 0o1600)
    assert number >= 0
    try:
        refused(pool, "look_at_shared_memory", number, (layer.IPC,))
    finally:
        libc.shmctl(number, 0, None)


def test_privileges(pool: WorkerPool):
    """In a user namespace the task has all of them, before it is rid of them."""
    namespaces = only(pool, layer.USER, layer.PIDS)
    assert value(pool, "gain_privileges", None, namespaces) == WORKED
    without = only(pool, layer.PIDS, layer.PRIVILEGES)
    assert value(pool, "gain_privileges", None, without) != WORKED
    assert value(pool, "gain_privileges", None, only(pool, layer.PIDS, layer.SECCOMP)) != WORKED


def test_open_files(pool: WorkerPool):
    refused(pool, "open_many_files", limits.OPEN_FILES, (layer.LIMITS,))


@pytest.mark.parametrize("function", ["run_program", "fork"])
def test_processes_after_the_build(pool: WorkerPool, function: str):
    refused(pool, function, None, (layer.SECCOMP,))
    assert value(pool, function, None, whole(pool, compilers=True)) == WORKED


def test_compilers_until_they_are_closed(pool: WorkerPool):
    assert value(pool, "compile_then_close", None, whole(pool, compilers=True)) == [WORKED, "PermissionError"]


def test_links_in_the_scratch_folder(pool: WorkerPool, secret: Path):
    assert value(pool, "make_link", str(secret), only(pool, layer.FILES)) != WORKED
    done = run(pool, "replace_log", str(secret), Confinement(()))
    assert isinstance(done, TaskDone)
    assert done.log == ""


def test_moving_files_in_the_scratch_folder(pool: WorkerPool):
    assert value(pool, "move", None, whole(pool)) == WORKED


def test_caches_of_the_user_are_not_used(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", "/elsewhere")
    with WorkerPool(python_path=[SUPPORT, ROOT]) as other:
        done = run(other, "surroundings", [], whole(other))
        assert isinstance(done, TaskDone), done
        assert done.value["environ"]["TRITON_HOME"] == str(done.scratch)
        assert "TRITON_CACHE_DIR" not in done.value["environ"]


def test_system_calls(pool: WorkerPool):
    """All that the filters name are refused, whatever their arguments."""
    known = syscalls.numbers()
    named = [n for n in (*seccomp.NEVER, *seccomp.NOT_FOR_CANDIDATES) if n in known and n != "vfork"]
    assert len(named) > 60
    assert value(pool, "system_calls", named, only(pool, layer.SECCOMP)) == []
    harmless = ["ptrace", "process_vm_readv", "kcmp", "keyctl", "socket", "connect", "execve", "chmod", "mount"]
    assert value(pool, "system_calls", harmless, Confinement(())) != []


@pytest.mark.slow
def test_a_fork_bomb_is_bounded(pool: WorkerPool):
    at_most = limits.MAX_PROCESSES + 500
    count = value(pool, "many_processes", at_most, only(pool, layer.PROCESSES, compilers=True), timeout_s=240)
    assert count <= limits.MAX_PROCESSES


def test_what_a_task_finds(pool: WorkerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    secrets = {"OPENAI_API_KEY": "sk-123", "HF_TOKEN": "sk-456", "TORCH_FORGE_API_KEY": "sk-789", "CUDA_TOKEN": "sk-000"}
    for name, text in secrets.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("OMP_SCHEDULE", "static")
    with WorkerPool(python_path=[SUPPORT, ROOT], scratch_root=tmp_path / "s") as own:
        done = run(own, "surroundings", ["home", "var", "run", "mnt", "media", "srv", "boot"], whole(own))
        assert isinstance(done, TaskDone)
        found = done.value
        assert found["environ"]["HOME"] == found["environ"]["TMPDIR"] == str(done.scratch)
    seen = found["initial"] + str(found["environ"])
    assert not any(text in seen for text in secrets.values())
    assert found["environ"]["OMP_SCHEDULE"] == "static"
    kinds = sorted(target.split(":")[0] for target in found["descriptors"].values())
    log = str(done.scratch / "log.txt")
    assert [k for k in kinds if not k.startswith("/proc/")] == sorted(["/dev/null", log, log, "socket"])
    if layer.ROOT in pool.sandbox_report().active:
        assert set(found["there"]) <= {path.split("/")[1] for path in (sys.prefix, sys.base_prefix, ROOT, str(tmp_path))}


def test_a_daemon_ends_with_its_task(pool: WorkerPool):
    left = value(pool, "leave_daemon", None, Confinement((), compilers=True))
    try:
        assert not _gone_at_once(left), "nothing but a pid namespace ends what has left the process group"
    finally:
        os.kill(left, signal.SIGKILL)
    assert gone(value(pool, "leave_daemon", None, only(pool, layer.PIDS, compilers=True)))


def _gone_at_once(pid: int) -> bool:
    time.sleep(0.2)
    return not Path(f"/proc/{pid}").exists()


def test_the_limit_ends_all_of_it(pool: WorkerPool, tmp_path: Path):
    confine = only(pool, layer.PIDS)
    assert run(pool, "hang", None, confine, timeout_s=2.0, scratch=tmp_path) == TaskExpired(2.0, "")
    assert gone(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize("function", ENDINGS)
def test_ends_are_told_as_they_are(pool: WorkerPool, function: str):
    """The first process of a pid namespace ignores its own signals; a task is not that one."""
    payload, expected = ENDINGS[function]
    died = pool.run(f"worker_tasks:{function}", payload, timeout_s=60.0, confine=whole(pool))
    assert isinstance(died, TaskDied)
    assert (died.signal, died.exit_status, died.exception) == expected


def test_sessions_are_confined_too(pool: WorkerPool):
    with pool.session("sandbox_tasks:converse", None, timeout_s=60, confine=whole(pool)) as talk:
        inside = talk.ask(None, timeout_s=30).value
        lines = Path(f"/proc/{talk.pid}/status").read_text().splitlines()
        (numbers,) = (line.split()[1:] for line in lines if line.startswith("NSpid:"))
        assert (int(numbers[0]), int(numbers[-1])) == (talk.pid, inside)
    assert gone(talk.pid)


def test_the_parent_s_death_ends_confined_tasks(pool: WorkerPool, tmp_path: Path):
    with WorkerPool(python_path=[SUPPORT, ROOT], scratch_root=tmp_path) as own:
        free = own.run("worker_tasks:facts", None, timeout_s=60)
        assert isinstance(free, TaskDone)
        talk = own.session("sandbox_tasks:converse", None, timeout_s=60, confine=whole(pool))
        talk.ask(None, timeout_s=30)
        os.kill(free.value["parent"], signal.SIGKILL)
        assert gone(talk.pid)
        talk.kill()


def test_a_layer_that_fails_is_no_verdict(pool: WorkerPool, tmp_path: Path):
    impossible = Confinement((layer.PROC,))
    with pytest.raises(SandboxError, match="needs a private root"):
        run(pool, "never_lock", None, impossible, scratch=tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_task_cannot_say_that_its_sandbox_failed(pool: WorkerPool):
    died = run(pool, "exit_as_if_unlocked", None, whole(pool))
    assert isinstance(died, TaskDied)
    assert died.exit_status == lock.EXIT_STATUS


def test_a_task_that_locks_itself_down(pool: WorkerPool, secret: Path):
    """As one with a GPU does, after CUDA has started."""
    later = replace(only(pool, layer.FILES), cuda=True)
    assert value(pool, "lock_later", str(secret), later) == [WORKED, "PermissionError"]
    died = run(pool, "never_lock", None, later)
    assert isinstance(died, TaskDied)
    assert died.exception == "RuntimeError: a confined task never locked itself down"


def test_modes(pool: WorkerPool):
    with WorkerPool(sandbox="off") as off, WorkerPool(sandbox="require") as required:
        assert off.confinement() is None
        assert set(off.sandbox_report().missing) == set(layer.LAYERS)
        if pool.sandbox_report().below_minimum:
            with pytest.raises(SandboxError, match="lacks here"):
                required.confinement()
        else:
            assert required.confinement() == Confinement(pool.sandbox_report().active)


def test_honest_work(pool: WorkerPool):
    found = value(pool, "compute", None, whole(pool))
    assert (found["trace"], found["same"]) == (512, True)
    assert found["threads"] >= 8


SQUARE = """#include "forge.h"
extern "C" int forge_launch(const ForgeTensor* in, const ForgeTensor* out, const int64_t* dims, int64_t,
                            int64_t threads, void*, void*) {
  const float* x = (const float*)in[0].data;
  float* y = (float*)out[0].data;
#pragma omp parallel for num_threads(threads)
  for (int64_t i = 0; i < dims[0]; ++i) y[i] = x[i] * x[i];
  return FORGE_OK;
}
"""


@pytest.fixture(scope="module")
def cpu() -> Toolchain:
    return find_toolchain(Settings.resolve(), "cpu")


def candidate(source: str) -> Candidate:
    return Candidate("problem", "square", "cpu", source, Origin.USER, "test", (Config({}, 4),))


@pytest.mark.compiler
def test_a_kernel_with_threads(pool: WorkerPool, cpu: Toolchain, tmp_path: Path):
    built = build(candidate(SQUARE), cpu, pool, staging_root=tmp_path, timeout_s=120)
    assert isinstance(built, Built), built
    found = value(pool, "run_kernel", built.library, whole(pool, readable=[Path(built.library).parent]))
    assert found["right"]
    assert found["threads"] >= 8


@pytest.mark.compiler
@pytest.mark.parametrize("text", ['#include "{secret}"', 'asm(".incbin \\"{secret}\\"");'], ids=["include", "incbin"])
def test_a_source_that_reads_files(pool: WorkerPool, cpu: Toolchain, tmp_path: Path, text: str):
    secret = tmp_path / "secret.h"
    secret.write_text('const char key[] = "sk-123";\n')
    failed = build(
        candidate(f"{text.format(secret=secret)}\n{SQUARE}"), cpu, pool, staging_root=tmp_path / "s", timeout_s=120
    )
    assert isinstance(failed, BuildFailed), failed
    assert "sk-123" not in failed.log


@pytest.mark.compiler
def test_a_constructor_that_starts_programs(pool: WorkerPool, cpu: Toolchain, tmp_path: Path):
    """It runs when the library is loaded, at the end of the build: by then nothing can be started."""
    starts = '#include <stdlib.h>\n__attribute__((constructor)) void now() { if (system("true") == 0) abort(); }\n'
    assert isinstance(build(candidate(starts + SQUARE), cpu, pool, staging_root=tmp_path, timeout_s=120), Built)
