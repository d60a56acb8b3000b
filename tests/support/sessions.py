"""Reports with good defaults; a test states only what matters."""

from __future__ import annotations

from typing import Any

from torch_forge.records.device import DeviceInfo
from torch_forge.records.outcomes import ErrorStats
from torch_forge.records.session import ModelCheck, RegionResult, SessionReport


def cpu_device(**changes: Any) -> DeviceInfo:
    defaults: dict[str, Any] = {
        "type": "cpu", "index": 0, "name": "test CPU", "arch": "avx2", "units": 2, "memory_bytes": 8 << 30,
        "smem_bytes": 32 << 10, "l2_bytes": 1 << 20, "copy_gb_per_s": 10.0, "flops_per_s": 1e11, "features": (),
    }  # fmt: skip
    return DeviceInfo(**{**defaults, **changes})


def region_result(**changes: Any) -> RegionResult:
    defaults: dict[str, Any] = {
        "name": "softmax", "problem": "p" * 16, "workload": "w" * 16, "calls": 4, "share": 0.4, "eager_us": 212.0,
        "inductor_us": 218.0, "forge_us": 84.0, "bound_us": 63.0, "verdict": "installed",
        "why": "2.5x eager, 2.6x torch.compile", "origin": "template", "error": ErrorStats(2e-3, 4e-3, (0, 0)),
        "eager_error": ErrorStats(2e-3, 4e-3, (0, 0)), "from_cache": False,
        "outcomes": {"passed": 7, "not built": 1}, "seconds": 9.5,
    }  # fmt: skip
    return RegionResult(**{**defaults, **changes})


def model_check(**changes: Any) -> ModelCheck:
    defaults: dict[str, Any] = {
        "eager_ms": 8.0, "forge_ms": 5.0, "speedup": 1.6, "speedup_low": 1.55, "speedup_high": 1.64, "output_error": 1.02,
        "engaged": 4, "accepted": True, "why": "faster as a whole",
    }  # fmt: skip
    return ModelCheck(**{**defaults, **changes})


def session_report(*regions: RegionResult, **changes: Any) -> SessionReport:
    defaults: dict[str, Any] = {
        "model": "Net", "device": cpu_device(), "versions": {"torch": "2.14.1", "torch_forge": "0.1"},
        "date": "2026-01-02T03:04:05Z", "policy": "eager-equivalent", "regions": regions, "left": (), "check": None,
        "stage_seconds": {"profile": 1.25, "forge": 30.0}, "notes": (), "complete": True,
    }  # fmt: skip
    return SessionReport(**{**defaults, **changes})
