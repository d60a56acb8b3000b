"""``torch-forge doctor``: what this machine can do, what is in the way, and what to change.

Every line is a fact that some error message elsewhere refers to. ``lines`` only looks; ``run`` prints.
"""

from __future__ import annotations

import os
import platform
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path

from torch_forge.compilation.jobs import available_bytes, build_jobs
from torch_forge.errors import CacheError, DeviceError, ForgeError, ToolchainError
from torch_forge.machine.device import device_info
from torch_forge.machine.toolchain import find_ninja, find_toolchain
from torch_forge.machine.workers import TaskDone, WorkerPool
from torch_forge.records import sandbox as layer
from torch_forge.records.device import DeviceInfo
from torch_forge.records.sandbox import SandboxReport
from torch_forge.settings import Settings

OK, BAD, INFO = "ok  ", "BAD ", "    "
"""How a line begins."""
CHECK_TIMEOUT_S = 60.0
_NAMESPACES = (
    "allow unprivileged user namespaces (sysctl user.max_user_namespaces above 0, and whichever there is of "
    "kernel.apparmor_restrict_unprivileged_userns=0 and kernel.unprivileged_userns_clone=1); in a container, a seccomp "
    "profile that lets unshare and mount pass"
)
_LANDLOCK = "has to be in the kernel's list of security modules (lsm=)"
SANDBOX_ADVICE: Mapping[str, str] = {
    **dict.fromkeys((layer.USER, layer.PIDS), _NAMESPACES),
    layer.ROOT: "mounts need Linux 5.12 and, in a container, a profile that lets mount and pivot_root pass",
    layer.PROC: "a container whose /proc is masked does not allow it (docker: --security-opt systempaths=unconfined)",
    layer.FILES: f"Landlock needs Linux 5.13 and {_LANDLOCK}",
    layer.TCP: f"needs Linux 6.7 and Landlock, which {_LANDLOCK}",
    layer.SIGNALS: f"needs Linux 6.12 and Landlock, which {_LANDLOCK}",
}
"""What to do about a layer that is missing. The others come with these or with the kernel."""
PROBE = "torch_forge.machine.worker_main:probe"


def prepare_parser(_: ArgumentParser) -> None:
    """No options."""


def run(_: Namespace, settings: Settings) -> int:
    """Print the examination; exit code 0 if kernels can be forged for the CPU or a GPU here, else ToolchainError's."""
    usable = False
    for line in lines(settings):
        usable = usable or line.startswith(f"{OK}compilers for ")
        print(line)
    return 0 if usable else ToolchainError.exit_code


def lines(settings: Settings) -> list[str]:
    """The examination; each line begins with ``OK``, ``BAD`` or, for what is only said, ``INFO``."""
    parts = (_versions(), _devices(settings), _cpu_compiler(settings), _cuda_compiler(settings), _jobs(settings))
    return [line for part in (*parts, _cache(settings), _workers(settings)) for line in part]


def _versions() -> Iterator[str]:
    import torch

    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    yield f"{OK}python {platform.python_version()}, torch {torch.__version__} ({built}), {platform.platform()}"


def _devices(settings: Settings) -> Iterator[str]:
    yield _device_line(device_info("cpu", settings))
    try:
        first = device_info("cuda", settings)
    except DeviceError as error:
        yield f"{INFO}no GPU: {error}"
        return
    import torch

    yield _device_line(first)
    for index in range(torch.cuda.device_count()):
        if index != first.index:
            yield _device_line(device_info(f"cuda:{index}", settings))


def _device_line(info: DeviceInfo) -> str:
    name = info.type if info.type == "cpu" else f"{info.type}:{info.index}"
    size = f"{info.units} units, {info.memory_bytes / 2**30:.0f} GiB, copies {info.copy_gb_per_s:.0f} GB/s"
    return f"{OK}device {name}: {info.name}, {info.arch}, {size} (key {info.key})"


def _cpu_compiler(settings: Settings) -> Iterator[str]:
    yield from _compilers(settings, "cpu", None)


def _cuda_compiler(settings: Settings) -> Iterator[str]:
    import torch

    if torch.version.cuda is None:
        yield f"{INFO}no compilers for cuda are looked for: this torch is built without CUDA"
        return
    try:
        device = device_info("cuda", settings)
    except DeviceError:
        device = None
    yield from _compilers(settings, "cuda", device)


def _compilers(settings: Settings, backend: str, device: DeviceInfo | None) -> Iterator[str]:
    try:
        found = find_toolchain(settings, backend, device)
    except ToolchainError as error:
        yield f"{BAD}compilers for {backend}: {str(error).splitlines()[0]}"
        yield from (f"{INFO}  {line.strip()}" for line in str(error).splitlines()[1:])
        yield f"{INFO}  {error.advice}"
        return
    if backend == "cpu":
        what = f"{found.cxx_version}, -march={found.march}"
    else:
        what = f"nvcc {found.nvcc_version} ({found.nvcc}) with {found.cxx}, for {' '.join(found.cuda_archs)}"
    yield f"{OK}compilers for {backend}: {what}"
    yield from (f"{INFO}  {note}" for note in found.notes)


def _jobs(settings: Settings) -> Iterator[str]:
    folder, note = find_ninja()
    # Not bad: without it the same commands are run one by one.
    yield f"{OK}{note}" if folder else f"{INFO}{note}; compilers are called directly (pip install ninja to change that)"
    gib = available_bytes() / 2**30
    yield f"{INFO}up to {build_jobs(settings)} builds at once ({gib:.1f} GiB free; MAX_JOBS lowers it)"


def _cache(settings: Settings) -> Iterator[str]:
    path = settings.cache_dir
    if settings.skip_cache:
        yield f"{INFO}cache: switched off (TORCH_FORGE_SKIP_CACHE)"
    elif path.exists():
        problem = _cache_problem(path)
        yield f"{BAD}cache {path}: {problem}; {CacheError.advice}" if problem else f"{OK}cache {path}"
    else:
        parent = next(p for p in path.absolute().parents if p.exists())
        writable = os.access(parent, os.W_OK | os.X_OK)
        yield (
            f"{OK}cache {path}: will be made"
            if writable
            else f"{BAD}cache {path}: {parent} is read-only; {CacheError.advice}"
        )


def _cache_problem(path: Path) -> str:
    if not path.is_dir():
        return "not a directory"
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return "not readable and writable"
    status = path.stat()
    if status.st_uid != os.getuid():
        return "belongs to another user"
    return "others may write to it" if status.st_mode & 0o022 else ""


def _workers(settings: Settings) -> Iterator[str]:
    try:
        with WorkerPool(sandbox=settings.sandbox) as pool:
            outcome = pool.run(PROBE, None, timeout_s=CHECK_TIMEOUT_S)
            sandbox = pool.sandbox_report()
    except ForgeError as error:
        yield f"{BAD}worker processes: {error}"
        return
    if not isinstance(outcome, TaskDone):
        yield f"{BAD}worker processes: a test task ended with {outcome}"
    elif outcome.value["parent_threads"] != 1:
        yield f"{BAD}worker processes: their parent has {outcome.value['parent_threads']} threads, so tasks may hang"
    else:
        yield f"{OK}worker processes: a test task took {outcome.seconds * 1e3:.0f} ms"
    yield from sandbox_lines(sandbox, switched_off=settings.sandbox == "off")


def sandbox_lines(report: SandboxReport, *, switched_off: bool) -> Iterator[str]:
    """In which layers candidates are held, what is missing, why, and what would change that."""
    if switched_off:
        yield f"{INFO}sandbox: switched off (TORCH_FORGE_SANDBOX); candidates can do all that you can"
        return
    lacking = report.below_minimum
    yield f"{BAD if lacking else OK}sandbox: {', '.join(report.active) or 'none of its layers works'}"
    if lacking:
        yield f"{INFO}  too little for source that nobody vouches for (TORCH_FORGE_SANDBOX=require): {', '.join(lacking)}"
    for name, why in report.missing.items():
        yield f"{INFO}  without {name}: {why}{f'; {SANDBOX_ADVICE[name]}' if name in SANDBOX_ADVICE else ''}"
