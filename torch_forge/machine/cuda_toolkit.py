"""Find the CUDA toolkit behind whatever is called nvcc, and the architectures to build for.

The ``nvcc`` on PATH may be a link or a one-line script into a toolkit elsewhere, so its folder's parent proves nothing; a
toolkit is where ``include/cuda_runtime.h`` is. Each candidate is taken or refused with a reason.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from torch_forge.errors import ToolchainError
from torch_forge.machine.process import run
from torch_forge.machine.proof import VERSION_TIMEOUT_S, compile_problem, first_complaint, note
from torch_forge.records.device import DeviceInfo

DEFAULT_ARCH = "9.0"
"""Built for when there is neither a device nor a list."""
ARCH_SPECIFIC = frozenset({"9.0", "10.0", "10.3", "12.0", "12.1"})
"""Compute capabilities whose ``a`` variant adds instructions (wgmma, tcgen05) and runs on that capability alone."""
NAMED_ARCHS = {
    "Volta": "7.0+PTX",
    "Turing": "7.5+PTX",
    "Ampere": "8.0;8.6+PTX",
    "Ada": "8.9+PTX",
    "Hopper": "9.0+PTX",
    "Blackwell": "10.0;12.0+PTX",
}
"""Names that torch accepts in TORCH_CUDA_ARCH_LIST."""
SANITIZER = "compute-sanitizer"
SOURCE = """
#include <cuda_runtime.h>
__global__ void empty() {}
extern "C" int forge_check() { empty<<<1, 1>>>(); return cudaGetLastError(); }
"""


@dataclass(frozen=True)
class CudaToolkit:
    """A toolkit that works."""

    home: str
    """Folder with ``bin/nvcc`` and ``include/cuda_runtime.h``; links resolved."""
    version: str
    """Of nvcc: ``13.0.88``."""
    notes: tuple[str, ...]
    """One line per candidate that was considered."""

    @property
    def nvcc(self) -> str:
        return os.path.join(self.home, "bin", "nvcc")


@cache
def find_cuda_toolkit(wanted: str, cxx: str, search_path: tuple[str, ...], check: bool) -> CudaToolkit:
    """The first that works with torch's CUDA and with the host compiler ``cxx`` (one word).

    wanted: the user's CUDA_HOME, or empty. Raises ToolchainError with a line for each candidate.
    """
    import torch

    if torch.version.cuda is None:
        raise ToolchainError(f"torch {torch.__version__} is built without CUDA", advice="Install a CUDA build of torch.")
    notes: list[str] = []
    seen: set[str] = set()
    for label, folder in _candidates(wanted, torch.version.cuda, search_path):
        home = os.path.realpath(folder)
        if home in seen:
            continue
        seen.add(home)
        version, problem = _examine(home, torch.version.cuda, cxx, check)
        notes.append(note(f"CUDA toolkit {folder} ({label}{f', nvcc {version}' if version else ''})", problem))
        if not problem:
            return CudaToolkit(home, version, tuple(notes))
    notes = notes or ["found none: no CUDA_HOME, no compiler wheels, no /usr/local/cuda*, no nvcc on PATH"]
    advice = (
        f"Set CUDA_HOME to a CUDA {torch.version.cuda} toolkit that works with {cxx}, or CXX to a compiler that it accepts, "
        "or install the compiler wheels: pip install 'torch_forge[cuda]'."
    )
    raise ToolchainError("no working CUDA toolkit\n" + "\n".join(f"  {line}" for line in notes), advice=advice)


def _candidates(wanted: str, torch_cuda: str, search_path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """(where from, folder), best first: the user's wish, what was installed beside torch, the system's."""
    if wanted:
        yield "CUDA_HOME", wanted
    spec = importlib.util.find_spec("nvidia")
    for parent in (spec.submodule_search_locations or ()) if spec else ():
        folder = os.path.join(parent, f"cu{torch_cuda.partition('.')[0]}")
        if os.path.exists(os.path.join(folder, "bin", "nvcc")):  # without the compiler it is only the runtime's wheel
            yield "compiler wheels", folder
    for folder in ("/usr/local/cuda", *sorted(glob.glob("/usr/local/cuda-*"), reverse=True)):
        if os.path.isdir(folder):
            yield "system", folder
    nvcc = shutil.which("nvcc", path=os.pathsep.join(search_path))
    if nvcc:
        yield "nvcc on PATH", str(Path(nvcc).resolve().parents[1])
        output = run((nvcc, "--dryrun", "x.cu"), timeout_s=VERSION_TIMEOUT_S).output
        if top := re.search(r"^#\$ TOP=(.+)$", output, re.MULTILINE):
            yield "nvcc --dryrun", top[1].strip()


def _examine(home: str, torch_cuda: str, cxx: str, check: bool) -> tuple[str, str]:
    """(nvcc's version or empty, why this toolkit cannot be used or empty)."""
    nvcc = os.path.join(home, "bin", "nvcc")
    for needed in ("bin/nvcc", "include/cuda_runtime.h"):
        if not os.path.exists(os.path.join(home, needed)):
            return "", f"there is no {needed}"
    done = run((nvcc, "--version"), timeout_s=VERSION_TIMEOUT_S)
    match = re.search(r"V(\d+\.\d+(\.\d+)?)", done.stdout) or re.search(r"release (\d+\.\d+)", done.stdout)
    if not done.ok or match is None:
        return "", f"nvcc --version failed: {first_complaint(done.output) or f'status {done.exit_status}'}"
    version = match[1]
    if version.partition(".")[0] != torch_cuda.partition(".")[0]:
        return version, f"it is CUDA {version}, torch was built for CUDA {torch_cuda}; the major versions must agree"
    if not check:
        return version, ""
    # To an object only: linking is the host compiler's part, and that was proven.
    flags = ("-std=c++17", "-Xcompiler", "-fPIC", "-ccbin", cxx, "-arch", "compute_80", "-c")
    return version, compile_problem((nvcc, *flags), SOURCE, "check.cu")


def choose_archs(wanted: str, device: DeviceInfo | None, nvcc: str) -> tuple[str, ...]:
    """What to build for, in the notation of TORCH_CUDA_ARCH_LIST.

    The user's list; else the device's architecture, or where nvcc is too old for it the newest that nvcc knows, as PTX.
    Raises ToolchainError if the list cannot be read.
    """
    if wanted and wanted != "native":
        words = [NAMED_ARCHS.get(word, word) for word in re.split(r"[;\s,]+", wanted)]
        archs = tuple(word for word in ";".join(words).split(";") if word)
        gencode_flags(archs)
        return archs
    match = re.fullmatch(r"sm_(\d+)(\d)", device.arch) if device is not None else None
    arch = f"{match[1]}.{match[2]}" if match else DEFAULT_ARCH
    known = _known_archs(nvcc)
    if known and arch not in known:
        older = [k for k in known if _number(k) < _number(arch)]
        return (f"{max(older or known, key=_number)}+PTX",)
    return (f"{arch}a" if arch in ARCH_SPECIFIC else arch,)


def gencode_flags(archs: tuple[str, ...]) -> tuple[str, ...]:
    """nvcc's flags for these architectures. Raises ToolchainError on one that cannot be read."""
    flags: list[str] = []
    for arch in archs:
        match = re.fullmatch(r"(\d+)\.(\d)([af]?)(\+PTX)?", arch)
        if match is None:
            advice = "Set TORCH_CUDA_ARCH_LIST to a list such as '8.0;9.0+PTX'."
            raise ToolchainError(f"unknown GPU architecture {arch!r}", advice=advice)
        number = match[1] + match[2] + match[3]
        flags.append(f"-gencode=arch=compute_{number},code=sm_{number}")
        if match[4]:
            flags.append(f"-gencode=arch=compute_{number},code=compute_{number}")
    return tuple(flags)


@cache
def _known_archs(nvcc: str) -> frozenset[str]:
    output = run((nvcc, "--list-gpu-arch"), timeout_s=VERSION_TIMEOUT_S).stdout
    return frozenset(f"{major}.{minor}" for major, minor in re.findall(r"compute_(\d+)(\d)\b", output))


def _number(arch: str) -> tuple[int, int]:
    major, _, minor = arch.partition(".")
    return int(major), int(minor)


def find_compute_sanitizer(cuda_home: str) -> tuple[str, str]:
    """(path of a compute-sanitizer that runs, or empty; one line about it): this toolkit's, one on PATH, another's."""
    return _find_compute_sanitizer(cuda_home, tuple(os.get_exec_path()))


@cache
def _find_compute_sanitizer(cuda_home: str, search_path: tuple[str, ...]) -> tuple[str, str]:
    others = sorted(glob.glob("/usr/local/cuda*"), reverse=True)
    inside = [os.path.join(home, part, SANITIZER) for home in (cuda_home, *others) for part in ("bin", SANITIZER)]
    places = [*inside[:2], *(os.path.join(folder, SANITIZER) for folder in search_path), *inside[2:]]
    refused: list[str] = []
    for path in places:
        if not os.access(path, os.X_OK) or os.path.isdir(path):
            continue
        done = run((path, "--version"), timeout_s=VERSION_TIMEOUT_S)
        if done.ok and (match := re.search(r"Version (\S+)", done.stdout)):
            return path, f"compute-sanitizer {match[1]} ({path})"
        refused.append(f"{path} does not run: {first_complaint(done.output) or f'status {done.exit_status}'}")
    return "", "; ".join(refused) or "there is no compute-sanitizer, neither in the CUDA toolkit nor on PATH"
