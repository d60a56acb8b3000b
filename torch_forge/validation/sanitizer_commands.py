"""What runs under sanitizers: how driver and kernel are built, how each tool is called, files that say what to launch."""

from __future__ import annotations

import os
import re
import secrets
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from torch_forge.graphs.place import ZONE_BYTES, span
from torch_forge.machine.cuda_toolkit import find_compute_sanitizer
from torch_forge.machine.sandbox.paths import installation
from torch_forge.machine.toolchain import Toolchain
from torch_forge.records.tensors import DTYPES, TensorSpec
from torch_forge.validation.cases import Case

HOST_TOOL = "asan+ubsan"
"""One process with both."""
DEVICE_TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
PORTS = range(20_000, 60_000, 40)
"""A tool talks to what it watches over a local port, the first free one of ten: four tools at once take ten each. Where they
begin is drawn, since two of them that meet at one port, of two processes that judge, do not find what they watch (H200)."""
LAUNCHES = 2
THREADS = 3
"""More than one, and few sizes are a multiple of it: every boundary between threads is met."""

INCLUDE = Path(__file__).resolve().parents[1] / "include"
DRIVER = INCLUDE / "forge_driver.cpp"
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
_SWITCHES = (
    "no_sanitize", "no_sanitize_address", "no_sanitize_undefined", "no_address_safety_analysis",
    "disable_sanitizer_instrumentation",
)  # fmt: skip
"""Attributes that a compiler would obey."""
HOST_FLAGS = (
    # -O1 keeps reads whose value hardly matters; -g1 is enough for lines.
    "-std=c++20", "-O1", "-g1", "-fno-omit-frame-pointer", "-fopenmp", "-fno-math-errno", "-fno-trapping-math",
    # The kernel is not told that it is watched, and cannot ask not to be.
    *SANITIZE, "-U__SANITIZE_ADDRESS__",
    *(f"-D{form}=forge_ignored" for name in _SWITCHES for form in (name, f"__{name}__")),
)  # fmt: skip
FINDING_STATUS = 86
"""Exit status of a process in which a sanitizer found something."""
ENVIRONMENT: Mapping[str, str | None] = {
    "ASAN_OPTIONS": f"detect_leaks=0:halt_on_error=1:exitcode={FINDING_STATUS}:detect_stack_use_after_return=1"
    ":allow_user_segv_handler=0:external_symbolizer_path=",
    "UBSAN_OPTIONS": f"halt_on_error=1:exitcode={FINDING_STATUS}:external_symbolizer_path=",
    "OMP_WAIT_POLICY": "passive",
    "LD_PRELOAD": None,  # AddressSanitizer must come first
    "LC_ALL": "C",
}


@dataclass(frozen=True)
class SanitizerRun:
    """One case under the sanitizers; a few megabytes at most, since they are slow."""

    case: Case
    dims: tuple[int, ...]
    """``dims[]`` of the candidate for this case."""

    @property
    def nbytes(self) -> int:
        """Of all its tensors."""
        graph = self.case.problem.graph
        return sum(span(s) * s.itemsize for s in (*graph.inputs, *graph.output_specs))


@dataclass(frozen=True)
class Commands:
    """What a worker is to run in its scratch directory."""

    builds: Mapping[str, list[str]] = field(default_factory=dict)
    tools: Mapping[str, list[str]] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    """Tools that are not on this machine -> why."""
    readable: tuple[str, ...] = ()
    """What they read beside the toolchain and the scratch directory."""


def host_commands(toolchain: Toolchain, files: Sequence[str]) -> Commands:
    """For a candidate's source, which is ``kernel.cpp`` in the scratch directory; files: see ``write_run``."""
    cxx, include = toolchain.cxx_command, f"-I{INCLUDE}"
    library = ["-fPIC", "-shared", "kernel.cpp", "-o", "kernel.so"]
    kernel = [*cxx, *HOST_FLAGS, f"-march={toolchain.march}", include, *library]
    driver = [*cxx, "-std=c++17", "-O1", *SANITIZE, include, str(DRIVER), "-o", "driver", "-ldl"]
    launch = ["./driver", f"{HOST_TOOL}.notes", "./kernel.so", str(LAUNCHES), "1", "0", *files]
    return Commands({"driver": driver, "kernel": kernel}, {HOST_TOOL: launch})


def device_commands(library: str, toolchain: Toolchain, files: Sequence[str], device_index: int) -> Commands:
    """For a built library: the code that is watched is the code that will be installed."""
    home = toolchain.cuda_home or ""
    program, note = find_compute_sanitizer(home)
    runtime = next((p for lib in ("lib64", "lib") for p in sorted(Path(home, lib).glob("libcudart.so*"))), None)
    if not program or runtime is None:
        return Commands(missing=dict.fromkeys(DEVICE_TOOLS, note if not program else f"there is no libcudart.so in {home}"))
    flags = ["-std=c++17", "-O1", "-DFORGE_CUDA", f"-I{INCLUDE}", f"-I{home}/include"]
    link = [str(runtime), f"-Wl,-rpath,{runtime.parent}", "-ldl"]
    driver = [*toolchain.cxx_command, *flags, str(DRIVER), "-o", "driver", *link]
    first_port = secrets.choice(PORTS)
    tools = {}
    for k, tool in enumerate(DEVICE_TOOLS):
        filled = "0" if tool == "initcheck" else "1"
        launch = ["./driver", f"{tool}.notes", os.path.abspath(library), str(LAUNCHES), filled, str(device_index), *files]
        tools[tool] = [
            program,
            "--tool",
            tool,
            *_options(tool, note),
            "--port",
            str(first_port + 10 * k),
            "--log-file",
            f"{tool}.report",
            *launch,
        ]
    return Commands({"driver": driver}, tools, readable=(*installation(program), os.path.abspath(library)))


def _options(tool: str, note: str) -> list[str]:
    options = ["--error-exitcode", str(FINDING_STATUS), "--print-limit", "10", "--show-backtrace", "device"]
    options += ["--target-processes", "application-only"]
    if tool == "memcheck":
        # Without padding, allocations may lie wall to wall. A failing call that a kernel handles is its own affair.
        options += ["--padding", "512", "--report-api-errors", "no"]
    version = re.search(r"(\d{4})\.(\d+)", note)
    if tool == "initcheck" and version and (int(version[1]), int(version[2])) >= (2026, 4):
        options += ["--initcheck-address-space", "all"]  # older ones do not know it or report honest kernels
    return options


def write_run(path: Path, run: SanitizerRun, *, config: int, workspace_bytes: int) -> None:
    """The file that ``forge_driver.cpp`` reads: what to launch, and the bytes of the inputs."""
    graph = run.case.problem.graph
    numbers = [config, THREADS, workspace_bytes, len(run.dims), *run.dims]
    offsets = run.case.offsets or (0,) * len(graph.inputs)
    numbers += [len(graph.inputs), *(n for s, o in zip(graph.inputs, offsets, strict=True) for n in _described(s, o))]
    numbers += [len(graph.output_specs), *(n for s in graph.output_specs for n in _described(s, 0))]
    with path.open("wb") as file:
        file.write(struct.pack(f"<{len(numbers)}q", *numbers))
        for spec, offset, placed in zip(graph.inputs, offsets, run.case.draw(torch.device("cpu")), strict=True):
            start = ZONE_BYTES + offset * spec.itemsize
            file.write(placed.region[start : start + span(spec) * spec.itemsize].numpy().tobytes())


def _described(spec: TensorSpec, offset_elements: int) -> tuple[int, ...]:
    code = list(DTYPES).index(spec.dtype)
    return (code, len(spec.shape), *spec.shape, *spec.stride, span(spec) * spec.itemsize, offset_elements * spec.itemsize)
