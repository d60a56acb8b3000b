"""Compilers that work, found once per process, with a line about each one that was considered.

Finding a program is not enough: a ``g++`` may lack its headers, an ``nvcc`` may refuse the ``g++``, a ``ninja`` may be a
script whose package is gone. So each is proven by use before a candidate meets it, and a failing build is the candidate's
fault. The CPU backend never looks at CUDA.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from torch_forge.errors import ToolchainError
from torch_forge.machine.cuda_toolkit import choose_archs, find_cuda_toolkit
from torch_forge.machine.host_compiler import find_host_compiler
from torch_forge.machine.process import run
from torch_forge.machine.proof import VERSION_TIMEOUT_S, first_complaint
from torch_forge.machine.sandbox.paths import installation
from torch_forge.records.codec import digest
from torch_forge.records.device import DeviceInfo
from torch_forge.settings import Settings

COMPILER_WRAPPERS = frozenset({"ccache", "sccache", "distcc"})


@dataclass(frozen=True)
class Toolchain:
    """What builds for one backend."""

    backend: str
    """``cuda`` or ``cpu``."""
    cxx: str
    """Host compiler, a path or a name; may carry a wrapper before it or arguments after it, as CXX may."""
    cxx_version: str
    """First line of its banner."""
    nvcc: str | None
    nvcc_version: str | None
    """``13.0.88``."""
    cuda_home: str | None
    """Folder with ``bin/nvcc`` and ``include/cuda_runtime.h``."""
    cuda_archs: tuple[str, ...]
    """``9.0a``, ``8.0+PTX`` ..., as in TORCH_CUDA_ARCH_LIST; empty on the CPU."""
    march: str
    """For g++."""
    notes: tuple[str, ...]
    """One line per candidate that was considered: taken, or refused and why."""

    @property
    def key(self) -> str:
        """What makes binaries differ: compilers by banner, instruction set, architectures. For cache keys."""
        return digest((self.backend, self.cxx_version, self.nvcc_version, self.march, self.cuda_archs))

    @property
    def cxx_command(self) -> tuple[str, ...]:
        """``cxx`` in words."""
        return tuple(shlex.split(self.cxx))

    @property
    def cxx_program(self) -> str:
        """The compiler alone, which nvcc takes for ``-ccbin``."""
        return program_of(self.cxx)

    @property
    def readable(self) -> tuple[str, ...]:
        """Files and folders that a build reads, wherever they were installed."""
        programs = [path for word in self.cxx_command if (path := shutil.which(word))]
        if folder := find_ninja()[0]:
            programs.append(os.path.join(folder, "ninja"))
        folders = [folder for program in programs for folder in installation(os.path.abspath(program))]
        return (*folders, *((self.cuda_home,) if self.cuda_home else ()))


def find_toolchain(settings: Settings, backend: str, device: DeviceInfo | None = None, *, check: bool = True) -> Toolchain:
    """The compilers for ``backend``, proven by a build.

    device: the GPU to build for if the user named no architectures. check: False asks only for versions (milliseconds
    instead of seconds), enough for the key of a cache lookup. Raises ToolchainError, with every candidate and why it was
    refused, if none works.
    """
    path = tuple(os.get_exec_path())
    if backend not in ("cpu", "cuda"):
        raise ToolchainError(f"there is no backend {backend!r}", advice="Backends: cuda, cpu.")
    host = find_host_compiler(settings.cxx, settings.march, path, check)
    if backend == "cpu":
        return Toolchain("cpu", host.command, host.banner, None, None, None, (), settings.march, host.notes)
    toolkit = find_cuda_toolkit(settings.cuda_home, program_of(host.command), path, check)
    return Toolchain(
        backend="cuda",
        cxx=host.command,
        cxx_version=host.banner,
        nvcc=toolkit.nvcc,
        nvcc_version=toolkit.version,
        cuda_home=toolkit.home,
        cuda_archs=choose_archs(settings.cuda_arch_list, device, toolkit.nvcc),
        march=settings.march,
        notes=(*host.notes, *toolkit.notes),
    )


def program_of(command: str) -> str:
    """The compiler in ``ccache g++ -m64``."""
    return next((w for w in shlex.split(command) if Path(w).name not in COMPILER_WRAPPERS), command)


def find_ninja() -> tuple[str, str]:
    """(folder of a ninja that runs, or empty; one line about it)."""
    return _find_ninja(tuple(os.get_exec_path()))


@cache
def _find_ninja(search_path: tuple[str, ...]) -> tuple[str, str]:
    refused: list[str] = []
    # An interpreter that was called by its path, without activating its environment, leaves its own folder out of PATH.
    for folder in (*search_path, os.path.dirname(sys.executable)):
        path = os.path.join(folder, "ninja")
        if not os.access(path, os.X_OK) or os.path.isdir(path):
            continue
        done = run((path, "--version"), timeout_s=VERSION_TIMEOUT_S)
        if done.ok:
            return folder, f"ninja {done.stdout.strip()} ({path})"
        refused.append(f"{path} does not run: {first_complaint(done.output) or f'status {done.exit_status}'}")
    return "", "; ".join(refused) or "no ninja on PATH"
