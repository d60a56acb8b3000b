"""Cache keys, entries and their files with good defaults; a test states only what matters to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch_forge.records.device import DeviceInfo
from torch_forge.records.entry import SCHEMA, CacheEntry, CacheKey, Environment, KeptEntry, KernelFacts, abi_tag
from torch_forge.records.kernels import Binding, Built, Candidate, Certificate, Config, Origin
from torch_forge.records.outcomes import CaseResult, Comparison, ErrorStats, Passed, Timing, Trial
from torch_forge.records.program import Load, Lowered, Part, Program, Store, Tensor
from torch_forge.records.session import RegionResult
from torch_forge.records.tensors import contiguous

ENVIRONMENT = Environment(torch_forge="0.1.0", torch="2.14.1+cpu", python="3.11.2", device_name="a CPU", driver="")
STATS = ErrorStats(rms=1e-7, worst=1e-6, worst_index=(0, 1))
CREATED = "2025-01-02T03:04:05.000006+00:00"
SOURCE = '#include "forge.h"\nextern "C" int forge_launch() { return 0; }\n'


def make_key(**changes: str) -> CacheKey:
    """A key for a CPU."""
    key = CacheKey(
        problem="ab12" * 4, policy="eager-equivalent", device="cpu-avx2-2x-15g-1f3a5b", arch="cpu_avx2",
        isa="native: avx avx2 fma", compiler="g++ 12.2.0", abi=abi_tag(),
    )  # fmt: skip
    return replace(key, **changes)


def make_device(**changes: Any) -> DeviceInfo:
    device = DeviceInfo(
        type="cpu", index=0, name="a CPU", arch="avx2", units=2, memory_bytes=16 << 30, smem_bytes=32 << 10,
        l2_bytes=32 << 20, copy_gb_per_s=20.0, flops_per_s=1e11, features=("avx", "avx2", "fma"),
    )  # fmt: skip
    return replace(device, **changes)


def workload_id(number: int = 0) -> str:
    """Sixteen hex digits."""
    return f"{number:016x}"


def make_candidate(**changes: Any) -> Candidate:
    candidate = Candidate(
        problem="ab12" * 4, name="softmax", backend="cpu", source=SOURCE, origin=Origin.TEMPLATE, author="row",
        configs=(Config({"threads": 2}, 4),),
    )  # fmt: skip
    return replace(candidate, **changes)


def make_result(**changes: Any) -> RegionResult:
    result = RegionResult(
        name="softmax", problem="ab12" * 4, workload=workload_id(), calls=3, share=0.25, eager_us=20.0, inductor_us=None,
        forge_us=10.0, bound_us=8.0, verdict="installed", why="2.0x", origin="template", error=STATS, eager_error=STATS,
        from_cache=False, outcomes={"passed": 2, "mismatch": 1}, seconds=4.0,
    )  # fmt: skip
    return replace(result, **changes)


def make_entry(workload: str = workload_id(), *, program: str | None = None, **changes: Any) -> CacheEntry:
    """An entry that was tuned on ``workload``."""
    key: CacheKey = changes.pop("key", make_key())
    candidate = make_candidate(problem=key.problem, program=program)
    timing = Timing(10.0, 9.5, 10.5, 50)
    entry = CacheEntry(
        schema=SCHEMA, key=key, workload=workload,
        kernel=KernelFacts.of(Built(candidate, "/nowhere/kernel.so", "0" * 64, 3.0, {})),
        certificate=Certificate(key.problem, key.policy, program, {}, 2**31 - 1, (workload,)),
        binding=Binding((contiguous((2, 3), "float32"),), (contiguous((2, 3), "float32"),), (2, 3), 0, 16, 0, 0),
        comparisons=(Comparison(0, timing, Timing(20.0, 19.0, 21.0, 50), 2.0, 1.9, 2.1),),
        cases=(CaseResult("normal 7", 0, STATS, STATS),), gates=("fresh inputs",), result=make_result(workload=workload),
        environment=ENVIRONMENT, created=CREATED, files={},
    )  # fmt: skip
    return replace(entry, **changes)


def make_kept(workload: str = workload_id(), **changes: Any) -> KeptEntry:
    result = make_result(workload=workload, verdict="kept", forge_us=None, why="eager is as fast: 20.0 us against 20.1 us")
    return replace(KeptEntry(SCHEMA, make_key(), workload, result, ENVIRONMENT, CREATED), **changes)


def make_files(marker: str = "") -> dict[str, bytes]:
    """Sources and two things that pass for libraries."""
    libraries = {"kernel.so": f"kernel {marker}".encode(), "glue.so": b"glue"}
    return {"kernel.cpp": SOURCE.encode(), "glue.cpp": b"// glue\n", **libraries}


def make_sources() -> dict[str, bytes]:
    return {name: data for name, data in make_files().items() if name.endswith(".cpp")}


def make_lowered(rows: int, columns: int) -> Lowered:
    """A copy of a matrix, in loop form."""
    index = ("+", ("*", ("d", 0), ("p", "p1")), ("d", 1))
    body = (Load("x", 0, index), Store(1, index, "x"))
    tensors = (Tensor("in", 0, "float32"), Tensor("out", 0, "float32"))
    return Lowered(Program("pointwise", tensors, ("p0", "p1"), (Part(("p0", "p1"), None, body),)), (rows, columns))


def make_trial(number: int = 0) -> Trial:
    """A finished trial of a candidate of its own."""
    candidate = make_candidate(source=f"// {number}\n{SOURCE}")
    return Trial(candidate, Built(candidate, f"/nowhere/{number}.so", "0" * 64, 2.0, {}), Passed(()), (), 3.0)
