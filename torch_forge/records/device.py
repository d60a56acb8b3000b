"""What kernels are tuned for: one device class, named by facts that decide which kernel is right and fast."""

from __future__ import annotations

from dataclasses import dataclass

from torch_forge.records.codec import digest


@dataclass(frozen=True)
class DeviceInfo:
    """A CUDA GPU (or MIG slice) or the CPU."""

    type: str
    """``cuda`` or ``cpu``."""
    index: int
    """CUDA ordinal; 0 on the CPU. Not part of the key."""
    name: str
    """Marketing name."""
    arch: str
    """``sm_90`` for a GPU; the instruction-set level (``avx2``, ``avx512``, ``neon``, ``generic``) on a CPU."""
    units: int
    """Streaming multiprocessors, or CPU threads torch uses."""
    memory_bytes: int
    smem_bytes: int
    """Shared memory one block may use (opt-in limit); L1 data cache of a core on the CPU."""
    l2_bytes: int
    """L2 of the GPU; last-level cache on the CPU."""
    copy_gb_per_s: float
    """Measured copy bandwidth, bytes read plus written, 1e9 bytes a second. Not part of the key."""
    flops_per_s: float
    """fp32 peak outside tensor cores, estimated from units and clock. Not part of the key."""
    features: tuple[str, ...]
    """Instruction-set flags on the CPU that the compiler may use, sorted; empty on a GPU."""

    @property
    def key(self) -> str:
        """Directory-safe name of the device class: ``cuda-sm_90-132x-141g-1f3a``."""
        facts = digest((self.type, self.arch, self.units, self.memory_bytes >> 30, self.smem_bytes, self.features), length=6)
        return f"{self.type}-{self.arch}-{self.units}x-{self.memory_bytes >> 30}g-{facts}"
