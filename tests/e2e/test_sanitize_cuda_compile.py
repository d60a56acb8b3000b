"""The GPU side of the gate "sanitizers" without a GPU: the real driver is built against CUDA's headers and runs on a runtime
of nine functions over host memory, under a compute-sanitizer that is a script."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.kernels import HEAD, INCLUDE, f32, problem
from torch_forge.machine.toolchain import Toolchain
from torch_forge.machine.workers import WorkerPool
from torch_forge.records.kernels import Built, Candidate, Config, Origin
from torch_forge.records.outcomes import Refused
from torch_forge.validation import sanitizer_commands
from torch_forge.validation.cases import Case
from torch_forge.validation.sanitize import SanitizerReport, SanitizerRun, sanitize
from torch_forge.validation.sanitizer_commands import DEVICE_TOOLS, device_commands

pytestmark = [pytest.mark.nvcc(direct=True), pytest.mark.compiler]
SCALE = problem(lambda x: x * 2, f32(100), name="scale")
GOOD = "for (int i = 0; i < 100; ++i) OUT(0)[i] = 2 * IN(0)[i];"
STUB = Path(__file__).parents[1] / "support" / "cudart_stub.c"
SCRIPT = """#!/bin/sh
while [ "$1" != ./driver ]; do
  case "$1" in --tool) tool=$2;; --log-file) report=$2;; esac
  shift
done
"$@" || exit
{then}
"""
CLEAN = 'echo "========= ERROR SUMMARY: 0 errors" > $report'
NOT_SUPPORTED = 'echo "========= Error: Device not supported." >> $report'


def headers() -> Path:
    for folder in ("/usr/local/cuda", *sorted(map(str, Path("/usr/local").glob("cuda-*")))):
        if (Path(folder) / "include" / "cuda_runtime_api.h").exists():
            return Path(folder) / "include"
    pytest.skip("CUDA's headers are not in /usr/local")


@pytest.fixture(scope="module")
def toolchain(tmp_path_factory: pytest.TempPathFactory) -> Toolchain:
    home = tmp_path_factory.mktemp("cuda")
    (home / "lib64").mkdir()
    (home / "include").symlink_to(headers())
    runtime = ["-o", str(home / "lib64" / "libcudart.so"), "-Wl,-soname,libcudart.so"]
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", str(STUB), *runtime], check=True)
    return Toolchain("cuda", "g++", "", str(home / "bin" / "nvcc"), "13.0", str(home), ("9.0a",), "native", ())


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool() as running:
        running.start()
        yield running


@pytest.fixture
def check(pool: WorkerPool, toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def run(body: str, then: str = CLEAN, *, offset: int = 0, device: int = 0, workspace_bytes: int = 0) -> SanitizerReport:
        tool = tmp_path / "compute-sanitizer"
        tool.write_text(SCRIPT.format(then=then))
        tool.chmod(0o700)
        found = (str(tool), "compute-sanitizer 2026.4.0.0 (a script)")
        monkeypatch.setattr(sanitizer_commands, "find_compute_sanitizer", lambda home: found)
        source = tmp_path / "kernel.cpp"
        source.write_text(HEAD + f"LAUNCH {{\n{body}\nreturn FORGE_OK;\n}}\n")
        command = ["g++", "-O1", "-w", "-fPIC", "-shared", f"-I{INCLUDE}", str(source), "-o", str(tmp_path / "kernel.so")]
        subprocess.run(command, check=True)
        candidate = Candidate(
            SCALE.digest, "scale", "cuda", "", Origin.USER, "test", (Config({}, 4),), workspace_bytes=workspace_bytes
        )
        case = Case("misaligned" if offset else "shifted", "shifted", 5, (offset,), SCALE)
        return sanitize(
            Built(candidate, str(tmp_path / "kernel.so"), "", 0.0, {}),
            0,
            [SanitizerRun(case, (100,))],
            toolchain=toolchain,
            pool=pool,
            staging_root=tmp_path / "staging",
            timeout_s=60.0,
            device=torch.device("cuda", device),
        )

    return run


def test_four_tools_watch_one_driver(check):
    report = check(f"if ((size_t)stream != 0x5001) return 7; {GOOD}")
    assert (report.tools, report.missing, report.finding) == (DEVICE_TOOLS, {}, None)


def test_each_tool_is_called_for_what_it_is_for(toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sanitizer_commands, "find_compute_sanitizer", lambda home: ("/bin/x", "compute-sanitizer 2025.3"))
    tools = device_commands("kernel.so", toolchain, ["run0.bin"], 1).tools
    assert [command[command.index("--tool") + 1] for command in tools.values()] == list(DEVICE_TOOLS)
    assert all(command[command.index("--error-exitcode") + 1] == "86" for command in tools.values())
    assert ["--padding" in command for command in tools.values()] == [name == "memcheck" for name in tools]
    assert len({command[command.index("--port") + 1] for command in tools.values()}) == len(tools)
    filled = [command[command.index("./driver") + 4] for command in tools.values()]
    assert filled == ["0" if name == "initcheck" else "1" for name in tools]


def test_only_initcheck_sees_memory_that_nobody_has_filled(check):
    """0x77 is what the runtime of this test leaves in new memory."""
    body = f"unsigned char u = *(unsigned char*)workspace; {GOOD} if (u == 0x77) return 5; memset(workspace, 1, 8);"
    report = check(body, workspace_bytes=8)
    assert report.tools == ("memcheck", "racecheck", "synccheck")
    assert isinstance(report.finding, Refused)
    assert report.finding.reason.startswith("initcheck: forge_launch: return code 5")


def test_inputs_are_misaligned_as_the_case_says(check):
    body = f"{GOOD} return (size_t)in[0].data % 512 == 4 && (size_t)out[0].data % 512 == 0 ? 0 : 9;"
    assert check(body, offset=1).finding is None
    assert check(body).finding is not None


def test_a_report_names_the_tensor(check):
    then = """
line=$(grep "input 0" $(basename $report .report).notes); address=${line#tensor 0x}; address=${address%% *}
end=$(printf "%x" $((0x$address + 400)))
cat > $report <<EOF
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at scale(const float *)+0x90 in cuda.cu:7
=========     by thread (100,0,0) in block (0,0,0)
=========     Address 0x$end is out of bounds
=========
========= ERROR SUMMARY: 1 error
EOF
exit 86"""
    finding = check(GOOD, then).finding
    assert isinstance(finding, Refused)
    assert finding.reason == (
        "memcheck: Invalid __global__ read of size 4 bytes, in scale(const float *) (cuda.cu:7), "
        "thread (100,0,0) in block (0,0,0), 0 bytes past the end of input 0 (shifted)"
    )


@pytest.mark.parametrize(
    ("body", "then", "device", "why"),
    [
        (GOOD, CLEAN, 1, "it cannot work here: cudaSetDevice: invalid device ordinal"),
        (GOOD, ":", 0, "it left no summary"),
        (GOOD, f"{CLEAN}; {NOT_SUPPORTED}", 0, "Error: Device not supported."),
    ],
    ids=["no device", "no report", "device not supported"],
)
def test_a_tool_that_cannot_look_is_missing(check, body: str, then: str, device: int, why: str):
    report = check(body, then, device=device)
    assert (report.tools, report.finding) == ((), None)
    assert report.missing == dict.fromkeys(DEVICE_TOOLS, why)


def test_where_the_whole_sandbox_is_required_the_tools_are_missing(check, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(WorkerPool, "sandbox_required", True)
    report = check(GOOD)
    assert (report.tools, report.finding) == ((), None)
    assert report.missing == dict.fromkeys(DEVICE_TOOLS, "it cannot work in the sandbox that is required")


@pytest.mark.parametrize("lacks", ["tool", "runtime"])
def test_a_machine_without_the_tools_says_so(
    toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: str
):
    found = ("", "there is none") if lacks == "tool" else ("/bin/true", "compute-sanitizer 2025.3")
    monkeypatch.setattr(sanitizer_commands, "find_compute_sanitizer", lambda home: found)
    where = toolchain if lacks == "tool" else replace(toolchain, cuda_home=str(tmp_path))
    commands = device_commands("kernel.so", where, [], 0)
    why = "there is none" if lacks == "tool" else f"there is no libcudart.so in {tmp_path}"
    assert (commands.tools, commands.missing) == ({}, dict.fromkeys(DEVICE_TOOLS, why))


def test_an_older_tool_is_not_asked_for_what_it_does_not_know(toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch):
    def words(version: str) -> list[str]:
        found = ("/bin/x", f"compute-sanitizer {version}")
        monkeypatch.setattr(sanitizer_commands, "find_compute_sanitizer", lambda home: found)
        return device_commands("kernel.so", toolchain, [], 0).tools["initcheck"]

    assert "--initcheck-address-space" in words("2026.4.0.0 (/opt/x)")
    assert "--initcheck-address-space" not in words("2025.3.1.0 (/opt/2026.4)")
