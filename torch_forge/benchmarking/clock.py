"""Time one call fairly: caches flushed, and on a GPU by events that are checked against the wall.

Before a sample, a buffer larger than the last-level cache is written; on the CPU the same code is then run once on other
data, so that what is cold is the data and not the interpreter. Short calls are timed several to a sample, each on other
inputs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from torch_forge.machine.l2 import reset_persisting_l2

Call = Callable[[int], object]
"""Runs once on the input set with this number and returns what it allocated."""
Ready = Callable[[], object]
"""The same with its inputs chosen already."""

MIN_SAMPLE_US = 20.0
"""Shorter than this, events and timers are too coarse: several calls make a sample."""
MAX_CALLS = 32
_CPU_FLUSH_BYTES = (8 << 20, 96 << 20)
"""At least and at most: beyond the last-level cache where that is affordable (10 ms a sample)."""
MOST_BUSY_US = 3000.0
"""Longest time for which the device is kept busy to hide the host."""
_GPU_FLUSH_FACTOR = 2
"""Times the L2: one L2-sized write can leave lines of the previous run in a partitioned L2 (H100)."""

_now_ns = time.perf_counter_ns
_Event = torch.cuda.Event
"""Taken before any candidate is loaded, which might put something else in their place."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Several calls of one side."""

    call_us: float
    """Microseconds of one call."""
    spent_us: float
    waited_us: float
    """As in ``stats.Round``."""
    results: list[Any]
    """What the calls returned."""


class CpuClock:
    """perf_counter_ns around the calls."""

    def __init__(self, cache_bytes: int) -> None:
        least, most = _CPU_FLUSH_BYTES
        self._buffer = torch.zeros(min(max(cache_bytes * 5 // 4, least), most), dtype=torch.uint8)

    def sample(self, call: Call, sets: Sequence[int], warm: int) -> Sample:
        """One call on each of ``sets``, caches flushed before; ``warm`` is an input set that is not timed."""
        self.flush()
        waited = waited_us()
        call(warm)
        results, spent_us = self.start([partial(call, number) for number in sets])
        spent = spent_us()
        return Sample(spent / len(sets), spent, waited_us() - waited, results)

    def flush(self) -> None:
        """Put other data into the caches."""
        self._buffer.add_(1)

    def start(self, calls: Sequence[Ready], busy_us: float = 0.0) -> tuple[list[Any], Callable[[], float]]:
        """Run the calls; their results, and a function that says how many microseconds all of them took."""
        del busy_us
        results: list[Any] = []
        begin = _now_ns()
        for call in calls:
            results.append(call())  # noqa: PERF401 (a comprehension would be one more frame in the timed region)
        end = _now_ns()
        return results, lambda: (end - begin) / 1e3

    def wait(self) -> None:
        """Nothing: a call that has returned has been computed."""

    def wall_us(self, call: Call, sets: Sequence[int]) -> float:
        """Microseconds of one call by the wall, caches warm."""
        begin = time.perf_counter_ns()
        for number in sets:
            call(number)
        return (time.perf_counter_ns() - begin) / 1e3 / len(sets)


class CudaClock:
    """Events on the current stream; the device is kept busy until the host has launched everything between them.

    Without that, host work would count as device time: the guards of a ``torch.compile``d function take longer than many
    kernels (77 us of kernel read as 166 us, H200).
    """

    def __init__(self, cache_bytes: int, device: torch.device) -> None:
        nbytes = max(_GPU_FLUSH_FACTOR * cache_bytes, 32 << 20)
        self._buffer = torch.zeros(nbytes // 4, dtype=torch.int32, device=device)
        self._device = device
        self._cycles_per_us = _clock_mhz(device)
        self._busy_us = 50.0

    def sample(self, call: Call, sets: Sequence[int], warm: int) -> Sample:
        """One call on each of ``sets``, the L2 flushed before, in device time."""
        del warm  # the interpreter runs while the flush does
        self.flush()
        launched = _now_ns()
        results, spent_us = self.start([partial(call, number) for number in sets], self._busy_us)
        host_us = (_now_ns() - launched) / 1e3
        spent = spent_us()
        # For the next sample: the slowest host so far, with room to spare; one slow first call does not count for ever.
        self._busy_us = min(max(self._busy_us, 1.5 * host_us), MOST_BUSY_US)
        return Sample(spent / len(sets), spent, 0.0, results)

    def flush(self) -> None:
        """Put other data into the L2, and end what keeps lines there against that."""
        reset_persisting_l2()
        self._buffer.add_(1)

    def start(self, calls: Sequence[Ready], busy_us: float) -> tuple[list[Any], Callable[[], float]]:
        """Launch the calls behind a device kept busy for ``busy_us``; as for the CPU, the function waits for their end."""
        begin, end = (_Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda._sleep(int(busy_us * self._cycles_per_us))  # type: ignore[no-untyped-call]
        begin.record()
        results = [call() for call in calls]
        end.record()

        def spent_us() -> float:
            self.wait()
            return float(begin.elapsed_time(end)) * 1e3

        return results, spent_us

    def wait(self) -> None:
        """Until every stream of the device is idle."""
        torch.cuda.synchronize(self._device)

    def wall_us(self, call: Call, sets: Sequence[int]) -> float:
        """Microseconds of one call by the wall, all streams of the device included."""
        self.wait()
        begin = time.perf_counter_ns()
        for number in sets:
            call(number)
        self.wait()
        return (time.perf_counter_ns() - begin) / 1e3 / len(sets)


def _clock_mhz(device: torch.device) -> float:
    """Cycles of the device in a microsecond, at its highest clock; the spin is then at least as long as asked for."""
    khz = getattr(torch.cuda.get_device_properties(device), "clock_rate", 2_000_000)
    return float(khz) / 1e3


def waited_us(pid: int | str = "self") -> float:
    """Time that threads of a process, while ready to run, have waited for a core so far; 0 where Linux does not tell."""
    total = 0
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/schedstat", "rb") as file:
                total += int(file.read().split()[1])
    except (OSError, IndexError, ValueError):
        return 0.0
    return total / 1e3


Clock = CpuClock | CudaClock


def clock_for(device: torch.device, cache_bytes: int) -> Clock:
    """The clock of a device; its flush buffer is allocated now."""
    return CudaClock(cache_bytes, device) if device.type == "cuda" else CpuClock(cache_bytes)


def calls_per_sample(call_us: float) -> int:
    """How many calls make a sample that is long enough to time."""
    return max(1, min(MAX_CALLS, round(MIN_SAMPLE_US / max(call_us, 0.1))))
