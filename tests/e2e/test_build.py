"""Real compilers on real candidates: what is built can be called, what is not leaves its reason and nothing else."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from torch_forge.compilation import diagnose
from torch_forge.compilation.build import TASKS, build, build_glue, build_many
from torch_forge.errors import ToolchainError
from torch_forge.machine.loader import LoadError, load_glue, load_kernel
from torch_forge.machine.process import run
from torch_forge.machine.toolchain import Toolchain, find_toolchain
from torch_forge.machine.workers import WorkerPool
from torch_forge.records.kernels import BuildFailed, Built, Candidate, Config, Origin
from torch_forge.records.outcomes import Crashed, TimedOut
from torch_forge.settings import Settings

ENTRY = """
extern "C" int forge_launch(const ForgeTensor* in, const ForgeTensor* out, const int64_t* dims, int64_t config,
                            int64_t threads, void* workspace, void* stream)"""
RELU_CPU = (
    '#include "forge.h"\n'
    + ENTRY
    + """ {
  const float* x = (const float*)in[0].data;
  float* y = (float*)out[0].data;
#pragma omp parallel for num_threads((int)threads) schedule(static)
  for (int64_t i = 0; i < dims[0]; ++i) y[i] = x[i] < 0.f ? 0.f : x[i];
  return FORGE_OK;
}
"""
)
RELU_CUDA = (
    '#include "forge.h"\n#include <cuda_fp16.h>\n'
    """
__global__ void relu(const __half* x, __half* y, int64_t n) {
  __shared__ __half tile[256];
  int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i >= n) return;
  tile[threadIdx.x] = x[i] * __half(1.f);
  y[i] = tile[threadIdx.x] < __half(0.f) ? __half(0.f) : tile[threadIdx.x];
}
"""
    + ENTRY
    + """ {
  unsigned blocks = (unsigned)((dims[0] + 255) / 256);
  relu<<<blocks, 256, 0, (cudaStream_t)stream>>>((const __half*)in[0].data, (__half*)out[0].data, dims[0]);
  cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? FORGE_OK : FORGE_CUDA_ERROR + (int)error;
}
"""
)
GLUE = """
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
extern "C" int forge_glue_answer() { return aoti_torch_device_type_cpu() + 42; }
"""

pytestmark = pytest.mark.compiler


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(preload=[TASKS]) as shared:
        yield shared


@pytest.fixture(scope="module")
def open_pool() -> Iterator[WorkerPool]:
    """For compilers that leave marks outside of their scratch directory."""
    with WorkerPool(preload=[TASKS], sandbox="off") as shared:
        yield shared


@pytest.fixture(scope="module")
def cpu() -> Toolchain:
    return find_toolchain(Settings.resolve(), "cpu")


@pytest.fixture(scope="module")
def cuda() -> Toolchain:
    return find_toolchain(Settings.resolve(), "cuda")


def candidate(source: str, backend: str = "cpu") -> Candidate:
    return Candidate("problem", "relu", backend, source, Origin.USER, "test", (Config({}, 4),))


class ForgeTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
    )


def call_relu(address: int, x: torch.Tensor, threads: int) -> torch.Tensor:
    y = torch.empty_like(x)
    size, stride = (ctypes.c_int64 * 1)(x.numel()), (ctypes.c_int64 * 1)(1)
    tensors = [(ForgeTensor * 1)(ForgeTensor(t.data_ptr(), size, stride, 1, 1)) for t in (x, y)]
    launch = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 2, *[ctypes.c_void_p] * 2)(address)
    assert launch(*tensors, size, 0, threads, None, None) == 0
    return y


def test_a_kernel_is_built_loaded_and_right(pool: WorkerPool, cpu: Toolchain, tmp_path: Path):
    built = build(candidate(RELU_CPU), cpu, pool, staging_root=tmp_path, timeout_s=120)
    assert isinstance(built, Built), getattr(built, "log", built)
    library = Path(built.library)
    assert [p.name for p in library.parent.iterdir()] == [library.name]
    assert library.parent.parent == tmp_path
    assert len(built.library_sha256) == 64
    assert built.resources == {}
    x = torch.randn(1 << 16)
    assert torch.equal(call_relu(load_kernel(library), x, torch.get_num_threads()), x.relu())


def test_one_openmp_runtime(pool: WorkerPool, cpu: Toolchain, tmp_path: Path):
    """The kernel's parallel regions run on torch's threads; a second pool would fight with the first."""
    built = build(candidate(RELU_CPU + "// one runtime"), cpu, pool, staging_root=tmp_path, timeout_s=120)
    assert isinstance(built, Built)
    torch.ones(1 << 20).exp()
    before = threads_of_this_process()
    x = torch.randn(1 << 20)
    call_relu(load_kernel(built.library), x, torch.get_num_threads())
    assert threads_of_this_process() == before


def threads_of_this_process() -> int:
    return len(os.listdir("/proc/self/task"))


REFUSED = {
    "int x = undeclared;": "'undeclared' was not declared in this scope",
    '#include "torch/extension_of_mine.h"': "torch/extension_of_mine.h: No such file or directory",
    'extern "C" int missing(); int x = missing();': "undefined symbol: missing",
    "#error No space left on device": "#error No space left on device",
}


@pytest.mark.parametrize("ninja", [True, False], ids=["ninja", "direct"])
@pytest.mark.parametrize("source", REFUSED, ids=["compiler", "header", "loader", "spoof"])
def test_a_candidate_that_does_not_build(pool, cpu, tmp_path, monkeypatch, source: str, ninja: bool):
    if not ninja:
        monkeypatch.setattr("torch_forge.compilation.build.find_ninja", lambda: ("", "none"))
    failed = build(candidate(source), cpu, pool, staging_root=tmp_path, timeout_s=120)
    assert isinstance(failed, BuildFailed)
    assert REFUSED[source] in diagnose.root_cause(failed.log)
    assert failed.exit_status == 1
    assert ("main.cpp" in shlex.join(failed.command)) is ("symbol" not in REFUSED[source])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("statement", "expected"),
    [("abort()", (6, -6)), ("raise(SIGSEGV)", (11, -11)), ("_exit(0)", (0, 0))],
    ids=["abort", "segfault", "exit"],
)
def test_a_constructor_that_kills_its_process(pool, cpu, tmp_path, statement: str, expected: tuple[int, int]):
    source = f"#include <csignal>\n#include <cstdlib>\n#include <unistd.h>\nstatic int x = ({statement}, 1);"
    crashed = build(candidate(source), cpu, pool, staging_root=tmp_path, timeout_s=120)
    assert isinstance(crashed, Crashed)
    assert (crashed.signal, crashed.exit_status) == expected
    assert list(tmp_path.iterdir()) == []


def test_a_build_that_does_not_end(pool: WorkerPool, cpu: Toolchain, tmp_path: Path):
    source = "#include <unistd.h>\nstatic int x = (sleep(600), 1);"
    assert isinstance(build(candidate(source), cpu, pool, staging_root=tmp_path, timeout_s=2), TimedOut)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ninja", ["", "#!/bin/sh\nexit 1\n"], ids=["missing", "broken"])
def test_without_ninja_the_compiler_is_called_directly(pool, cpu, tmp_path, monkeypatch, ninja: str):
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("sh", "as", "ld"):
        (tools / tool).symlink_to(shutil.which(tool) or "")
    if ninja:
        (tools / "ninja").write_text(ninja)
        (tools / "ninja").chmod(0o755)
    pool.run("torch_forge.machine.worker_main:probe", None, timeout_s=60)  # starts it while Python is where it is
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setattr("sys.executable", str(tools / "python"))
    built = build(candidate(RELU_CPU), cpu, pool, staging_root=tmp_path / "s", timeout_s=120)
    assert isinstance(built, Built), getattr(built, "log", built)
    assert torch.equal(call_relu(load_kernel(built.library), torch.tensor([-1.0, 2.0]), 1), torch.tensor([0.0, 2.0]))


def test_a_compiler_behind_a_wrapper(pool: WorkerPool, cpu: Toolchain, tmp_path: Path):
    wrapped = replace(cpu, cxx=f"/usr/bin/env {cpu.cxx}")
    assert isinstance(build(candidate(RELU_CPU), wrapped, pool, staging_root=tmp_path, timeout_s=120), Built)


def test_a_stale_lock_of_torch_is_nobodys_business(pool, cpu, tmp_path, monkeypatch):
    """torch's build directory of the user is neither used nor waited for."""
    shared = tmp_path / "torch_extensions"
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(shared))
    for name in ("", "relu", f"relu_{candidate(RELU_CPU).digest}"):
        (shared / name).mkdir(exist_ok=True, parents=True)
        (shared / name / "lock").write_text("")
    assert isinstance(build(candidate(RELU_CPU), cpu, pool, staging_root=tmp_path / "staging", timeout_s=60), Built)


@pytest.fixture
def fake(cpu: Toolchain, tmp_path: Path) -> Toolchain:
    """A compiler that does what the file ``body`` beside it says."""
    path = tmp_path / "tools" / "g++"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\n. {path.parent}/body\nexec {cpu.cxx} "$@"\n')
    path.chmod(0o755)
    return replace(cpu, cxx=str(path))


def body(fake: Toolchain, text: str) -> Path:
    path = Path(fake.cxx).parent / "body"
    path.write_text(text)
    return path.parent


def test_a_machine_that_is_to_blame_is_an_error(pool: WorkerPool, fake: Toolchain, tmp_path: Path):
    body(fake, "echo 'as: main.o: No space left on device' >&2; exit 1\n")
    with pytest.raises(ToolchainError, match="No space left") as caught:
        build(candidate(RELU_CPU), fake, pool, staging_root=tmp_path / "staging", timeout_s=60)
    assert "TORCH_FORGE_CACHE_DIR" in caught.value.advice
    assert list((tmp_path / "staging").iterdir()) == []


def test_a_compiler_that_ran_out_of_memory_gets_a_second_try(open_pool: WorkerPool, fake: Toolchain, tmp_path: Path):
    killed = "echo 'g++: fatal error: Killed signal terminated program cc1plus' >&2; exit 1"
    tools = body(fake, f"if [ ! -e {tmp_path}/tried ]; then : > {tmp_path}/tried; {killed}; fi\n")
    assert isinstance(build(candidate(RELU_CPU), fake, open_pool, staging_root=tmp_path / "staging", timeout_s=60), Built)
    (tools / "body").write_text(f"{killed}\n")
    failed = build(candidate(RELU_CPU), fake, open_pool, staging_root=tmp_path / "staging", timeout_s=60)
    assert isinstance(failed, BuildFailed)
    assert failed.exit_status == -9


def test_many_builds_keep_to_their_number(open_pool: WorkerPool, fake: Toolchain, tmp_path: Path):
    marks = tmp_path / "marks"
    marks.mkdir()
    body(fake, f"m={marks}/$$; : > $m; ls {marks} | wc -l >> {tmp_path}/counts; trap 'rm $m' EXIT; {fake_tail()}\n")
    candidates = [candidate(f"int n{i} = {'y' if i == 2 else i};") for i in range(4)]
    results = build_many(candidates, fake, open_pool, staging_root=tmp_path / "staging", timeout_s=60, jobs=2)
    built = {c.digest: isinstance(result, Built) for c, result in results}
    assert [built[c.digest] for c in candidates] == [True, True, False, True]
    assert max(int(n) for n in (tmp_path / "counts").read_text().split()) <= 2


def fake_tail() -> str:
    """Run the compiler as a child, so that the trap still runs, and end with its status."""
    return f'{shutil.which("g++")} "$@"; exit $?'


def test_a_consumer_may_stop_early(pool: WorkerPool, cpu: Toolchain, tmp_path: Path):
    candidates = [candidate(f"int stopped{i};") for i in range(20)]
    results = build_many(candidates, cpu, pool, staging_root=tmp_path, timeout_s=60, jobs=1)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert len(list(tmp_path.iterdir())) < 20
    assert not [t for t in threading.enumerate() if t.name.startswith("torch_forge-build")]


@pytest.mark.parametrize("ninja", [True, False], ids=["ninja", "direct"])
def test_glue_is_built_and_loaded(pool, cpu, tmp_path, monkeypatch, ninja: bool):
    if not ninja:
        monkeypatch.setattr("torch_forge.compilation.build.find_ninja", lambda: ("", "none"))
    path = build_glue(GLUE, "relu/glue", "cpu", cpu, pool, staging_root=tmp_path, timeout_s=120)
    assert load_glue(path).forge_glue_answer() == 42


def test_glue_that_fails_is_an_error_with_its_reason(pool: WorkerPool, cpu: Toolchain, tmp_path: Path):
    with pytest.raises(ToolchainError, match="'undeclared' was not declared"):
        build_glue("int x = undeclared;", "relu", "cpu", cpu, pool, staging_root=tmp_path, timeout_s=120)
    assert list(tmp_path.iterdir()) == []


def test_a_library_of_another_torch_is_a_load_error(cpu: Toolchain, tmp_path: Path):
    """What an upgrade leaves: a symbol that this torch does not have."""
    source = tmp_path / "old.cpp"
    source.write_text('extern "C" void aoti_torch_gone(); extern "C" int forge_launch() { aoti_torch_gone(); return 0; }')
    done = run([cpu.cxx, "-shared", "-fPIC", str(source), "-o", str(tmp_path / "old.so")], timeout_s=60)
    assert done.ok, done.output
    for load in (load_kernel, load_glue):
        with pytest.raises(LoadError, match="undefined symbol: aoti_torch_gone"):
            load(tmp_path / "old.so")


@pytest.mark.nvcc
def test_a_cuda_kernel_is_built_where_there_is_no_gpu(pool: WorkerPool, cuda: Toolchain, tmp_path: Path):
    built = build(candidate(RELU_CUDA, "cuda"), cuda, pool, staging_root=tmp_path, timeout_s=200)
    assert isinstance(built, Built), getattr(built, "log", built)
    assert built.resources["smem_bytes"] == 512
    assert 0 < built.resources["registers"] < 256
    assert load_kernel(built.library)
    assert not torch.cuda.is_initialized()


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("__global__ void k() { undeclared(); }", 'identifier "undeclared" is undefined'),
        ("__global__ void k() { __shared__ char x[1 << 20]; for (char& c : x) c = 1; }", "uses too much shared data"),
    ],
    ids=["nvcc", "ptxas"],
)
def test_a_cuda_candidate_that_does_not_build(pool, cuda, tmp_path, source: str, reason: str):
    failed = build(candidate(source, "cuda"), cuda, pool, staging_root=tmp_path, timeout_s=200)
    assert isinstance(failed, BuildFailed)
    assert reason in diagnose.root_cause(failed.log)
    assert failed.command[0] == cuda.nvcc
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nvcc
def test_an_architecture_that_nvcc_does_not_know_is_the_machines_fault(pool, cuda, tmp_path):
    with pytest.raises(ToolchainError, match="Unsupported gpu architecture") as caught:
        build(candidate(RELU_CUDA, "cuda"), replace(cuda, cuda_archs=("77.0",)), pool, staging_root=tmp_path, timeout_s=200)
    assert "TORCH_CUDA_ARCH_LIST" in caught.value.advice


@pytest.mark.nvcc
@pytest.mark.parametrize("ninja", [True, False], ids=["ninja", "direct"])
def test_cuda_glue_is_built_where_there_is_no_gpu(pool, cuda, tmp_path, monkeypatch, ninja: bool):
    if not ninja:
        monkeypatch.setattr("torch_forge.compilation.build.find_ninja", lambda: ("", "none"))
    source = GLUE.replace("aoti_torch_device_type_cpu()", "aoti_torch_device_type_cuda()")
    source += "void* stream_of(int device) { void* s; aoti_torch_get_current_cuda_stream(device, &s); return s; }"
    path = build_glue(source, "relu", "cuda", cuda, pool, staging_root=tmp_path, timeout_s=120)
    assert load_glue(path).forge_glue_answer() == 43


@pytest.mark.nvcc
def test_a_cuda_kernel_without_ninja(pool, cuda, tmp_path, monkeypatch):
    monkeypatch.setattr("torch_forge.compilation.build.find_ninja", lambda: ("", "none"))
    built = build(candidate(RELU_CUDA, "cuda"), cuda, pool, staging_root=tmp_path, timeout_s=200)
    assert isinstance(built, Built), getattr(built, "log", built)
