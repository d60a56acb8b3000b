"""Reading a GPU's clocks through a driver that is made up here."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torch_forge.machine.gpu_watch import GpuWatch
from torch_forge.machine.l2 import reset_persisting_l2
from torch_forge.records.device import DeviceInfo
from torch_forge.records.timing import DeviceState

GPU = DeviceInfo("cuda", 0, "paper", "sm_90", 132, 1 << 37, 1 << 17, 50 << 20, 4000.0, 6e13, ())


class NVMLError(Exception): ...


def driver_with(**answers: Any) -> SimpleNamespace:
    """As much of pynvml as is used; an answer that is an exception is raised."""
    found: dict[str, Any] = {"default": 1500, "clock": {1: 1400, 2: 3200}, "reasons": 0, "pids": [], "init": None, **answers}
    asked: list[bytes] = []

    def answer(name: str) -> Any:
        if isinstance(found[name], Exception):
            raise found[name]
        return found[name]

    return SimpleNamespace(
        answers=found,
        asked=asked,
        NVMLError=NVMLError,
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: answer("init"),
        nvmlDeviceGetHandleByUUID=lambda uuid: asked.append(uuid) or "handle",
        nvmlDeviceGetClockInfo=lambda handle, which: answer("clock")[which],
        nvmlDeviceGetDefaultApplicationsClock=lambda handle, which: answer("default"),
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: answer("reasons"),
        nvmlDeviceGetPowerUsage=lambda handle: 412_500,
        nvmlDeviceGetTemperature=lambda handle, which: 61,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [SimpleNamespace(pid=pid) for pid in answer("pids")],
    )


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch):
    def make(driver: SimpleNamespace | None) -> GpuWatch:
        monkeypatch.setitem(sys.modules, "pynvml", driver)  # type: ignore[arg-type]
        properties = SimpleNamespace(uuid="0f0f", clock_rate=1_980_000)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
        return GpuWatch(GPU)

    return make


def test_the_state_of_a_device(watching):
    driver = driver_with(reasons=0x1 | 0x4 | 0x40)
    watch = watching(driver)
    assert driver.asked == [b"GPU-0f0f"]
    assert (watch.missing, watch.default_sm_mhz, watch.sm_mhz()) == ("", 1500.0, 1400.0)
    assert watch.state() == DeviceState(1400.0, 3200.0, 412.5, 61.0, ("power cap", "thermal (hardware)"))


def test_without_a_default_clock_the_highest_counts(watching):
    assert watching(driver_with(default=NVMLError("not supported"))).default_sm_mhz == 1980.0


@pytest.mark.parametrize(
    ("driver", "why"),
    [
        (None, "pynvml is not installed"),
        (driver_with(init=NVMLError("no driver")), "no driver"),
        (driver_with(clock=NVMLError("MIG")), "MIG"),
    ],
    ids=["no module", "no driver", "no clocks"],
)
def test_what_is_missing_is_said(watching, driver: SimpleNamespace | None, why: str):
    watch = watching(driver)
    assert why in watch.missing
    assert (watch.state(), watch.sm_mhz(), watch.others([1])) == (None, 0.0, 0)


def test_a_driver_that_stops_answering(watching):
    driver = driver_with()
    watch = watching(driver)
    driver.answers |= {"reasons": NVMLError("lost")}
    assert watch.state() is None
    assert "lost" in watch.missing


@pytest.mark.parametrize(("pids", "others"), [([], 0), ([7, 8], 0), ([7, 8, 9], 1), ([501, 502, 503], 1)])
def test_company_on_the_device(watching, pids: list[int], others: int):
    assert watching(driver_with(pids=pids)).others([7, 8]) == others


def test_a_cpu_has_no_such_thing():
    assert GpuWatch(DeviceInfo("cpu", 0, "", "", 1, 1, 1, 1, 1.0, 1.0, ())).missing == "no GPU"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_no_driver_no_persisting_lines():
    assert reset_persisting_l2() is False
