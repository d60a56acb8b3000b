"""What a device is, in facts: from the driver for a GPU, from /proc and /sys for the CPU; bandwidth is measured, once.

Nothing here reads a device's name to decide anything: a MIG slice and the whole GPU share a name and differ in units and
memory. Asking about the CPU never touches CUDA.
"""

from __future__ import annotations

import os
import platform
import re
import time
from functools import cache
from pathlib import Path
from typing import Any

from torch_forge.errors import DeviceError
from torch_forge.records.device import DeviceInfo
from torch_forge.settings import Settings

CPU_COPY_BYTES = (32 << 20, 128 << 20)
"""Least and most bytes copied to measure the CPU: beyond the last-level cache, within 0.15 s."""
GPU_COPY_BYTES = 1 << 30
"""Half a millisecond on the fastest GPU, so that starting the copy does not count. Less where little memory is free, but at
least four times the L2, or the L2 would be measured."""
FALLBACK_L1, FALLBACK_L2, FALLBACK_LLC = 32 << 10, 1 << 20, 8 << 20
"""Bytes; where /sys does not tell, as in many containers."""

VECTOR_FLAGS = re.compile(
    r"(avx|amx|sse4|bmi|fma|f16c|movbe|popcnt|adx|abm|gfni|vaes|vpclmul|sha_ni|asimd|sve|i8mm|bf16|fphp|atomics)\w*|sme2?"
)
"""Flags of /proc/cpuinfo that name instructions a compiler may emit. The others change with the kernel or the hypervisor."""
MARCH_LEVELS = {"x86-64": "generic", "x86-64-v2": "generic", "x86-64-v3": "avx2", "x86-64-v4": "avx512"}
LANES_PER_CYCLE = {"avx512": 64, "avx2": 32, "neon": 16, "generic": 8}
"""fp32 operations of one core in a cycle: two fused multiply-adds of the vector width (generic: two multiply and add)."""
CORES_PER_SM = {(7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}
"""fp32 lanes of a streaming multiprocessor by compute capability; 128 elsewhere since 8.6."""


def device_info(device: str, settings: Settings, *, measure: bool = True) -> DeviceInfo:
    """The facts of ``cpu``, ``cuda`` (the current GPU) or ``cuda:N``.

    measure: False leaves out the copy (some 0.1 s, once per process and device) and reports a bandwidth of 0, enough for a
    cache key. Raises DeviceError if there is no such device.
    """
    match = re.fullmatch(r"cpu|cuda(?::(\d+))?", device)
    if match is None:
        raise DeviceError(f"unknown device {device!r}")
    if device == "cpu":
        import torch

        return _cpu(settings.march, torch.get_num_threads(), measure)
    index = _cuda_index(None if match[1] is None else int(match[1]))
    return _cuda(index, measure)


# --- the CPU ----------------------------------------------------------------------------------------------------------


@cache
def _cpu(march: str, threads: int, measure: bool) -> DeviceInfo:
    flags = cpu_features(march)
    arch = MARCH_LEVELS.get(march) or _cpu_level(flags)
    l1_bytes, _, llc_bytes = cpu_caches()
    return DeviceInfo(
        type="cpu",
        index=0,
        name=_cpu_field("model name") or platform.processor() or platform.machine(),
        arch=arch,
        units=threads,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        smem_bytes=l1_bytes,
        l2_bytes=llc_bytes,
        copy_gb_per_s=_cpu_copy_gb_per_s(llc_bytes) if measure else 0.0,
        flops_per_s=threads * _cpu_hz() * LANES_PER_CYCLE[arch],
        features=flags,
    )


def cpu_features(march: str) -> tuple[str, ...]:
    """What the compiler may use: this CPU's instruction flags for ``native``, else the name that it was given; sorted."""
    if march != "native":
        return (f"march={march}",)
    flags = (_cpu_field("flags") or _cpu_field("Features")).split()
    return tuple(sorted({flag for flag in flags if VECTOR_FLAGS.fullmatch(flag)}))


def _cpu_level(flags: tuple[str, ...]) -> str:
    if {"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= set(flags):
        return "avx512"
    if {"avx2", "fma"} <= set(flags):
        return "avx2"
    return "neon" if platform.machine() in ("aarch64", "arm64") else "generic"


@cache
def _cpuinfo() -> dict[str, str]:
    """Fields of the first processor in /proc/cpuinfo."""
    text = _read(Path("/proc/cpuinfo")).partition("\n\n")[0]
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}


def _cpu_field(name: str) -> str:
    return _cpuinfo().get(name, "")


def _cpu_hz() -> float:
    khz = _read(Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")).strip()
    if khz.isdigit():
        return float(khz) * 1e3
    mhz = re.fullmatch(r"\d+(\.\d+)?", _cpu_field("cpu MHz"))
    return float(mhz[0]) * 1e6 if mhz else 2.5e9


def cpu_caches(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> tuple[int, int, int]:
    """Bytes of L1 data, L2 and last-level cache of the first core."""
    sizes: dict[int, int] = {}
    for entry in sorted(root.glob("index*")):
        level, kind, size = (_read(entry / name).strip() for name in ("level", "type", "size"))
        match = re.fullmatch(r"(\d+)([KMG]?)", size)
        if match and level.isdigit() and kind != "Instruction":
            sizes[int(level)] = int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]
    last = sizes[max(sizes)] if sizes and max(sizes) > 1 else FALLBACK_LLC
    return sizes.get(1, FALLBACK_L1), sizes.get(2, FALLBACK_L2), last


def _cpu_copy_gb_per_s(llc_bytes: int) -> float:
    """Fastest of a few copies through torch, on the threads that kernels will have."""
    import torch

    least, most = CPU_COPY_BYTES
    count = max(least, min(2 * llc_bytes, most))
    source = torch.ones(count, dtype=torch.uint8)
    target = torch.zeros_like(source)  # both written: no page faults in the copy
    best = float("inf")
    deadline = time.perf_counter() + 0.08
    while best == float("inf") or time.perf_counter() < deadline:
        begin = time.perf_counter()
        target.copy_(source)
        best = min(best, time.perf_counter() - begin)
    return 2 * count / best / 1e9


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


# --- GPUs -------------------------------------------------------------------------------------------------------------


def _cuda_index(index: int | None) -> int:
    import torch

    if torch.version.cuda is None:
        raise DeviceError(
            f"torch {torch.__version__} is built without CUDA", advice="Use 'cpu', or install a CUDA build of torch."
        )
    # device_count understands MIG and UUID names in CUDA_VISIBLE_DEVICES; nothing here reads that variable.
    if not torch.cuda.is_available() or (count := torch.cuda.device_count()) == 0:
        raise DeviceError(
            "no CUDA device is visible to torch", advice="Use 'cpu', or check the driver and CUDA_VISIBLE_DEVICES."
        )
    index = torch.cuda.current_device() if index is None else index
    if index >= count:
        raise DeviceError(f"there is no cuda:{index}; torch sees {count} device(s)")
    return index


@cache
def _cuda(index: int, measure: bool) -> DeviceInfo:
    import torch

    props: Any = torch.cuda.get_device_properties(index)
    cores = CORES_PER_SM.get((props.major, props.minor), 128)
    clock_hz = getattr(props, "clock_rate", 1_500_000) * 1e3
    return DeviceInfo(
        type="cuda",
        index=index,
        name=props.name,
        arch=f"sm_{props.major}{props.minor}",
        units=props.multi_processor_count,
        memory_bytes=props.total_memory,
        smem_bytes=getattr(props, "shared_memory_per_block_optin", 48 << 10),
        l2_bytes=props.L2_cache_size,
        copy_gb_per_s=_cuda_copy_gb_per_s(index, props) if measure else 0.0,
        flops_per_s=2.0 * props.multi_processor_count * cores * clock_hz,
        features=(),
    )


def _cuda_copy_gb_per_s(index: int, props: Any) -> float:
    """Best of a few event-timed copies, on a stream and in memory of their own.

    Where too little memory is free to measure anything but the L2, what the memory's clock and width promise.
    """
    import torch

    with torch.cuda.device(index):
        free_bytes = torch.cuda.mem_get_info(index)[0]
        count = max(4 * props.L2_cache_size, min(GPU_COPY_BYTES, free_bytes // 8))
        if free_bytes < 4 * count:
            bits_per_s = 2e3 * getattr(props, "memory_clock_rate", 2_000_000) * getattr(props, "memory_bus_width", 4096)
            return float(bits_per_s / 8 / 1e9)
        pool = torch.cuda.MemPool()  # goes back to the driver with the pool, is not kept by the caching allocator
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.use_mem_pool(pool), torch.cuda.stream(stream):
            source = torch.zeros(count, dtype=torch.uint8, device="cuda")
            target = torch.empty_like(source)
            times_ms: list[float] = []
            for _ in range(12):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
                begin.record(stream)
                target.copy_(source)
                end.record(stream)
                end.synchronize()
                times_ms.append(begin.elapsed_time(end))
        del source, target, pool
    return float(2 * count / (min(times_ms) * 1e-3) / 1e9)
