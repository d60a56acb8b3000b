"""Clocks, power, temperature and company of one GPU, as its driver tells (NVML); reading them changes nothing."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch_forge.records.device import DeviceInfo
from torch_forge.records.timing import DeviceState

_THROTTLING = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal (driver)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
}
"""Bits of NVML's clock event reasons that mean a lower clock than the work asks for."""


class GpuWatch:
    """One device. On a CPU, or where the driver does not answer, ``missing`` says why and nothing is known."""

    def __init__(self, device: DeviceInfo) -> None:
        self._handle: Any = None
        self._nvml: Any = None
        self.default_sm_mhz = 0.0
        self.missing = _connect(self, device)

    def state(self) -> DeviceState | None:
        """The device now; None if that is not known."""
        if self._handle is None:
            return None
        nvml, handle = self._nvml, self._handle
        try:
            reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
            return DeviceState(
                float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
                float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
                nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
                float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
                tuple(name for bit, name in _THROTTLING.items() if reasons & bit),
            )
        except nvml.NVMLError as error:
            self.missing, self._handle = f"NVML: {error}", None
            return None

    def sm_mhz(self) -> float:
        """The present clock of the multiprocessors; 0 if it is not known."""
        if self._handle is None:
            return 0.0
        try:
            return float(self._nvml.nvmlDeviceGetClockInfo(self._handle, self._nvml.NVML_CLOCK_SM))
        except self._nvml.NVMLError:
            return 0.0

    def others(self, ours: Collection[int]) -> int:
        """Compute processes on the device besides ``ours``, by process ids as the driver sees them."""
        if self._handle is None:
            return 0
        try:
            running = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except self._nvml.NVMLError:
            return 0
        pids = {process.pid for process in running}
        # In a container the driver knows our processes by other numbers; then only their count can be compared.
        return len(pids - set(ours)) if pids & set(ours) else max(0, len(pids) - len(ours))


def _connect(watch: GpuWatch, device: DeviceInfo) -> str:
    """Fill in the handle; why that is not possible, or an empty string."""
    if device.type != "cuda":
        return "no GPU"
    try:
        import pynvml
    except ImportError:
        return "the module pynvml is not installed"
    import torch

    properties = torch.cuda.get_device_properties(device.index)
    try:
        pynvml.nvmlInit()
        uuid = getattr(properties, "uuid", None)
        handle = (
            pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())
            if uuid is not None
            else pynvml.nvmlDeviceGetHandleByIndex(device.index)
        )
        pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
    except pynvml.NVMLError as error:
        return f"NVML: {error}"
    watch._nvml, watch._handle = pynvml, handle
    try:
        watch.default_sm_mhz = float(pynvml.nvmlDeviceGetDefaultApplicationsClock(handle, pynvml.NVML_CLOCK_SM))
    except pynvml.NVMLError:  # newer devices have no such setting
        watch.default_sm_mhz = getattr(properties, "clock_rate", 0) / 1e3
    return ""
