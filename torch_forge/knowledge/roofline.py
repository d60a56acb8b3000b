"""The roofline: how fast a kernel could possibly be, and what holds it back. Pure arithmetic on a ``DeviceInfo``.

A kernel must move its bytes and do its operations; whichever takes longer is the bound. Below the cost of one launch,
neither matters: such an operation gains only by disappearing into a larger kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from torch_forge.records.device import DeviceInfo

LATENCY_FLOOR_US: Mapping[str, float] = MappingProxyType({"cuda": 3.0, "cpu": 1.0})
"""About what one operation costs before it does anything: a CUDA launch, a CPU dispatch."""


def memory_us(bytes_moved: int, device: DeviceInfo) -> float:
    """Time to move the bytes at the measured copy bandwidth; 0 where the bandwidth is unknown."""
    return bytes_moved / (device.copy_gb_per_s * 1e3) if device.copy_gb_per_s > 0 else 0.0


def compute_us(flops: int, device: DeviceInfo) -> float:
    """Time for the operations at the fp32 peak outside tensor cores; 0 where the peak is unknown."""
    return flops / device.flops_per_s * 1e6 if device.flops_per_s > 0 else 0.0


def bound_us(bytes_moved: int, flops: int, device: DeviceInfo) -> float:
    """No kernel whose data starts in device memory can be faster, in microseconds."""
    return max(memory_us(bytes_moved, device), compute_us(flops, device))


_CORE_GB_PER_S = 100.0
"""What one core reads and writes at most, from its own caches."""


def impossible_below_us(bytes_moved: int, device: DeviceInfo) -> float:
    """No kernel is faster: by copy bandwidth on a GPU; by the caches on a CPU, since nobody can empty them for sure."""
    if device.type == "cpu":
        return bytes_moved / (max(device.units, 1) * _CORE_GB_PER_S * 1e3)
    return memory_us(bytes_moved, device)


def classify(bytes_moved: int, flops: int, device: DeviceInfo) -> str:
    """``memory``, ``compute``, or ``latency`` where the launch costs more than either."""
    if bound_us(bytes_moved, flops, device) < LATENCY_FLOOR_US[device.type]:
        return "latency"
    return "memory" if memory_us(bytes_moved, device) >= compute_us(flops, device) else "compute"


def attainable_us(bytes_moved: int, flops: int, device: DeviceInfo) -> float:
    """The bound, or one launch where that is longer."""
    return max(bound_us(bytes_moved, flops, device), LATENCY_FLOOR_US[device.type])


def headroom_us(measured_us: float, bytes_moved: int, flops: int, device: DeviceInfo) -> float:
    """The most that a better kernel of its own could gain over a measured time."""
    return max(0.0, measured_us - attainable_us(bytes_moved, flops, device))


def percent_of_bound(measured_us: float, limit_us: float) -> float:
    """100 at the bound, 50 at twice its time. Raises ValueError unless the time is positive: none is not fast."""
    if not measured_us > 0:
        raise ValueError(f"not a measured time: {measured_us} us")
    return 100.0 * limit_us / measured_us
