"""Find a C++ compiler that really builds an OpenMP library, not just one whose name is on PATH."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from torch_forge.errors import ToolchainError
from torch_forge.machine.process import run
from torch_forge.machine.proof import ENGLISH, VERSION_TIMEOUT_S, compile_problem, first_complaint, note

ADVICE = "Install g++ (Debian: apt install g++, conda: conda install gxx), or set CXX to a compiler that works."
FULL_DISK = re.compile(r"No space left on device|Disk quota exceeded")
FULL_DISK_ADVICE = "The disk for temporary files is full. Free some space, or set TMPDIR to a directory on a larger one."
SOURCE = """
#include <cstdint>
#include <cmath>
extern "C" int forge_check(int n) {
#pragma omp parallel for
  for (int i = 0; i < n; ++i) {}
  return n;
}
"""


@dataclass(frozen=True)
class HostCompiler:
    """A C++ compiler that works."""

    command: str
    """A path or a name; may carry a wrapper before it or arguments after it, as CXX may."""
    banner: str
    """First line of its ``--version``."""
    notes: tuple[str, ...]
    """One line per candidate that was considered."""


@cache
def find_host_compiler(wanted: str, march: str, search_path: tuple[str, ...], check: bool) -> HostCompiler:
    """The user's choice, or the first that works of g++, c++ and clang++. Raises ToolchainError with a line for each."""
    notes: list[str] = []
    for label, command in _candidates(wanted, search_path):
        banner, problem = _identify(command)
        if not problem and check:
            flags = (f"-march={march}", "-fopenmp", "-std=c++20", "-O1", "-fPIC", "-shared")
            problem = compile_problem((*shlex.split(command), *flags), SOURCE, "check.cpp")
        notes.append(note(f"{command} ({label})", problem))
        if not problem:
            return HostCompiler(command, banner, tuple(notes))
    full = any(FULL_DISK.search(line) for line in notes)
    advice = FULL_DISK_ADVICE if full else ADVICE
    raise ToolchainError("no working C++ compiler\n" + "\n".join(f"  {line}" for line in notes), advice=advice)


def _candidates(wanted: str, search_path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """(where from, command). A named compiler is the only one: another than the one asked for would be a surprise."""
    if wanted:
        yield "CXX", wanted
        return
    seen: set[str] = set()
    for name in ("g++", "c++", "clang++"):
        path = shutil.which(name, path=os.pathsep.join(search_path))
        if path and os.path.realpath(path) not in seen:
            seen.add(os.path.realpath(path))
            yield "PATH", path
    if not seen:
        yield "PATH", "g++"


def _identify(command: str) -> tuple[str, str]:
    """(banner, problem), one of them empty."""
    done = run((*shlex.split(command), "--version"), timeout_s=VERSION_TIMEOUT_S, env=ENGLISH)
    if done.ok:
        return (done.stdout.splitlines() or ["unknown"])[0], ""
    return "", first_complaint(done.output) or f"--version ended with status {done.exit_status}"
