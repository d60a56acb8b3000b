"""Candidate in, shared library out; a candidate that does not build is a value, a compiler that builds nothing is not.

Each build has a private directory and a worker of its own, so nothing is shared, locked or left behind, and a candidate
whose constructors crash takes only the worker with it. The worker is confined: see ``machine/sandbox``.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from torch_forge.compilation import diagnose
from torch_forge.compilation.jobs import Gate
from torch_forge.errors import ToolchainError
from torch_forge.machine.cuda_toolkit import gencode_flags
from torch_forge.machine.files import private_dir, remove_tree, sha256_file
from torch_forge.machine.leftovers import demand_room
from torch_forge.machine.toolchain import Toolchain, find_ninja
from torch_forge.machine.workers import TaskDied, TaskDone, TaskExpired, WorkerPool
from torch_forge.records.kernels import BuildFailed, Built, Candidate
from torch_forge.records.outcomes import Crashed, TimedOut

TASKS = "torch_forge.compilation.tasks"
"""For ``WorkerPool(preload=...)``: saves each build the import of torch's build module."""
INCLUDE = str(Path(__file__).resolve().parents[1] / "include")

CPU_FLAGS = ("-O3", "-fopenmp", "-fno-math-errno", "-fno-trapping-math")
"""Neither reorders sums nor assumes that there are no infinities or NaNs, unlike -ffast-math, which is not used."""
CUDA_FLAGS = (
    "-O3", "-std=c++17", "-lineinfo", "-Xptxas", "-v",
    # torch switches the operators of half types off for its own headers; kernels include none of those.
    "-U__CUDA_NO_HALF_OPERATORS__", "-U__CUDA_NO_HALF_CONVERSIONS__",
    "-U__CUDA_NO_BFLOAT16_CONVERSIONS__", "-U__CUDA_NO_HALF2_OPERATORS__",
)  # fmt: skip
GLUE_FLAGS = ("-O2",)
COMPILER_BYTES = 16 << 30
"""Address space that a compiler may take: ten times what one needs, and less than would stop the machine."""

_gate = Gate()
"""Builds of this process pass together; one whose compiler ran out of memory is repeated alone."""

Outcome = Built | BuildFailed | Crashed | TimedOut


def build(candidate: Candidate, toolchain: Toolchain, pool: WorkerPool, *, staging_root: Path, timeout_s: float) -> Outcome:
    """Compile one candidate and load it once in a worker. Thread-safe.

    staging_root: where a private directory is made; it holds the library if the candidate was built and is gone otherwise.
    Raises ToolchainError if the machine is to blame, so that no other candidate would build either; WorkerError if its
    disk is.
    """
    with _gate.shared():
        outcome = _build_once(candidate, toolchain, pool, staging_root, timeout_s)
    if isinstance(outcome, BuildFailed) and diagnose.was_killed(outcome.log):
        with _gate.alone():
            outcome = _build_once(candidate, toolchain, pool, staging_root, timeout_s)
    if isinstance(outcome, BuildFailed) and (advice := diagnose.environmental(outcome.log)):
        reason = diagnose.root_cause(outcome.log)
        raise ToolchainError(f"the {candidate.backend} compiler cannot build:\n{reason}", advice=advice)
    if not isinstance(outcome, Built):
        demand_room(staging_root)  # there was none for the compiler's own words either
    return outcome


def build_many(
    candidates: Sequence[Candidate],
    toolchain: Toolchain,
    pool: WorkerPool,
    *,
    staging_root: Path,
    timeout_s: float,
    jobs: int,
) -> Iterator[tuple[Candidate, Outcome]]:
    """Build on ``jobs`` workers (see ``jobs.build_jobs``); each result as soon as it is there. Raises as ``build`` does."""
    with ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="torch_forge-build") as threads:
        futures = {
            threads.submit(build, candidate, toolchain, pool, staging_root=staging_root, timeout_s=timeout_s): candidate
            for candidate in candidates
        }
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:  # also when the consumer has seen enough
            threads.shutdown(wait=True, cancel_futures=True)


def build_glue(
    source: str, name: str, backend: str, toolchain: Toolchain, pool: WorkerPool, *, staging_root: Path, timeout_s: float
) -> Path:
    """Compile the C++ file that registers an operator with torch; the library's path.

    It is alone in a private directory of ``staging_root``. Raises ToolchainError with the compiler's own reason: glue is our
    source, so the machine is to blame.
    """
    with_cuda = backend == "cuda"
    flags = (*GLUE_FLAGS, *(("-DUSE_CUDA",) if with_cuda else ()))
    # Nothing is compiled by nvcc, but load_inline looks for GPUs where no architecture is named.
    archs = gencode_flags(toolchain.cuda_archs)
    name = identifier(name)
    payload = _payload(name, toolchain, cpp=source, needs_torch=True, with_cuda=with_cuda, cflags=flags, cuda_cflags=archs)
    staging = _staging(staging_root, name)
    with _gate.shared():
        outcome = _in_worker(payload, toolchain, pool, staging, timeout_s)
    if isinstance(outcome, TaskDone) and outcome.value["library"] and not outcome.value["load_error"]:
        return _keep_library(staging, name)
    remove_tree(staging)
    if isinstance(outcome, TaskExpired):
        raise ToolchainError(
            f"the glue of {name} took more than {timeout_s:g} s to build", advice="Is the machine overloaded?"
        )
    reason = diagnose.root_cause(outcome.log) or getattr(outcome, "exception", "") or "the worker died"
    raise ToolchainError(f"the glue of {name} does not build:\n{reason}", advice=diagnose.environmental(outcome.log))


def _build_once(
    candidate: Candidate, toolchain: Toolchain, pool: WorkerPool, staging_root: Path, timeout_s: float
) -> Outcome:
    name = identifier(f"{candidate.name}_{candidate.digest}")
    staging = _staging(staging_root, name)
    payload = _kernel_payload(name, candidate, toolchain)
    try:
        outcome = _in_worker(payload, toolchain, pool, staging, timeout_s)
        result = _result(candidate, name, outcome, staging)
    except BaseException:
        remove_tree(staging)
        raise
    if not isinstance(result, Built):
        remove_tree(staging)
    return result


def _in_worker(
    payload: dict[str, Any], toolchain: Toolchain, pool: WorkerPool, staging: Path, timeout_s: float
) -> TaskDone | TaskDied | TaskExpired:
    """Compilers read whatever a source names, so they are confined as the candidate itself is."""
    confine = pool.confinement(compilers=True, readable=toolchain.readable)
    environment = _environment(staging)
    return pool.run(
        f"{TASKS}:build",
        payload,
        timeout_s=timeout_s,
        env=environment,
        scratch=staging,
        memory_bytes=COMPILER_BYTES,
        confine=confine,
    )


def _result(candidate: Candidate, name: str, outcome: TaskDone | TaskDied | TaskExpired, staging: Path) -> Outcome:
    match outcome:
        case TaskExpired():
            return TimedOut(outcome.limit_s, outcome.log)
        case TaskDied() if outcome.exception:
            advice = diagnose.environmental(outcome.exception)
            raise ToolchainError(f"a build could not be carried out: {outcome.exception}", advice=advice)
        case TaskDied():
            return Crashed(outcome.signal, outcome.exit_status, outcome.log)
        case TaskDone() if outcome.value["load_error"] or outcome.value["library"] is None:
            command, status = failed_command(outcome.log)
            return BuildFailed(candidate, command, status, outcome.log, outcome.seconds)
    library = _keep_library(staging, name)
    return Built(candidate, str(library), sha256_file(library), outcome.seconds, resources(outcome.log))


def _kernel_payload(name: str, candidate: Candidate, toolchain: Toolchain) -> dict[str, Any]:
    if candidate.backend == "cpu":
        unique = () if "clang" in toolchain.cxx_version else ("-fno-gnu-unique",)  # no variable is shared between kernels
        flags = (*CPU_FLAGS, f"-march={toolchain.march}", *unique)
        return _payload(name, toolchain, cpp=candidate.source, cflags=flags)
    flags = (*CUDA_FLAGS, "-ccbin", toolchain.cxx_program, *gencode_flags(toolchain.cuda_archs))
    return _payload(name, toolchain, cuda=candidate.source, with_cuda=True, cuda_cflags=flags)


def _payload(
    name: str,
    toolchain: Toolchain,
    *,
    cpp: str = "",
    cuda: str = "",
    needs_torch: bool = False,
    with_cuda: bool = False,
    cflags: Sequence[str] = (),
    cuda_cflags: Sequence[str] = (),
) -> dict[str, Any]:
    """What ``tasks.build`` is given."""
    return {
        "name": name,
        "cpp": cpp,
        "cuda": cuda,
        "needs_torch": needs_torch,
        "with_cuda": with_cuda,
        "cxx": list(toolchain.cxx_command),
        "cuda_home": toolchain.cuda_home,
        "cflags": list(cflags),
        "cuda_cflags": list(cuda_cflags),
        "ldflags": [flag for flag in cflags if flag == "-fopenmp"],
        "include": [INCLUDE],
        "ninja": bool(find_ninja()[0]),
    }


def _environment(staging: Path) -> dict[str, str | None]:
    """Set in the worker only. torch's own build directory is not used; its compiler checks are ``find_toolchain``'s."""
    ninja = find_ninja()[0]
    return {
        "TORCH_EXTENSIONS_DIR": str(staging),
        "TORCH_CUDA_ARCH_LIST": None,  # the flags say it, for this build alone
        "TORCH_NO_COMPILER_WRAPPER": "1",
        "TORCH_DONT_CHECK_COMPILER_ABI": "1",
        "TORCH_EXTENSION_SKIP_NVCC_GEN_DEPENDENCIES": "1",
        "MAX_JOBS": "1",  # how many builds run at once is decided here, not in each of them
        "CUDA_VISIBLE_DEVICES": "",  # loading runs the candidate's constructors; they get no GPU
        "LC_ALL": "C",  # diagnose.py reads English
        "CC": None,  # torch would hand it to nvcc as a second host compiler
        "PYTORCH_NVCC": None,
        **({"PATH": os.pathsep.join((ninja, *os.get_exec_path()))} if ninja else {}),
    }


def _staging(root: Path, name: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=f"{name[:80]}-", dir=private_dir(root).absolute()))


def identifier(text: str) -> str:
    """Usable as a file name and as a C identifier."""
    cleaned = re.sub(r"\W", "_", text, flags=re.ASCII)
    return cleaned if cleaned[:1].isalpha() else f"k{cleaned}"


def _keep_library(staging: Path, name: str) -> Path:
    """Remove everything else from the directory."""
    library = staging / f"{name}.so"
    for entry in staging.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            remove_tree(entry)
        elif entry != library:
            entry.unlink(missing_ok=True)
    return library


def failed_command(log: str) -> tuple[tuple[str, ...], int]:
    """(command, exit status) of the compiler run that failed, as ninja reports it; -9 if it ran out of memory."""
    match = re.search(r"^FAILED: (?:\[code=(\d+)\] )?.*\n(.+)$", log, re.MULTILINE)
    status = -9 if diagnose.was_killed(log) else int((match and match[1]) or 1)
    try:
        command = tuple(shlex.split(match[2])) if match else ()
    except ValueError:
        command = (match[2],) if match else ()
    return command, status


def resources(log: str) -> dict[str, int]:
    """The largest figures over all kernels in ptxas's report; empty if there is none."""
    patterns = {
        "registers": r"Used (\d+) registers",
        "smem_bytes": r"(\d+) bytes smem",
        "spill_bytes": r"(\d+) bytes spill (?:stores|loads)",
    }
    found = {name: [int(n) for n in re.findall(pattern, log)] for name, pattern in patterns.items()}
    if not found["registers"]:
        return {}
    return {name: max(numbers, default=0) for name, numbers in found.items()}
