"""What a kernel may leave behind in its process: nothing. Looked at before it is loaded and after it has run."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from torch_forge.machine.environment import process_environment
from torch_forge.machine.l2 import device_limits

_RESIDENT_SLACK_BYTES = 8 << 20
"""Allocators keep some of what was freed."""


@dataclass(frozen=True)
class Snapshot:
    """The state of this process that a kernel has no business with."""

    threads: int
    descriptors: int
    environment: str
    directory: str
    torch_state: tuple[object, ...]
    random_state: str
    limits: tuple[int, ...]
    """Of the CUDA context."""

    @classmethod
    def take(cls) -> Snapshot:
        return cls(
            len(os.listdir("/proc/self/task")),
            len(os.listdir("/proc/self/fd")),
            _digest(b"\0".join(process_environment())),
            os.getcwd(),
            _torch_state(),
            _digest(torch.get_rng_state().numpy().tobytes()),
            device_limits() if torch.cuda.is_initialized() else (),  # type: ignore[no-untyped-call]
        )

    def differences(self, later: Snapshot, *, threads: bool) -> list[str]:
        """What changed, in words. threads: whether their number counts; kernels may keep a pool for parallel loops."""
        found = []
        if threads and later.threads > self.threads:
            found.append(f"{later.threads - self.threads} threads are still there though it was to use one")
        if later.descriptors > self.descriptors:
            found.append(f"{later.descriptors - self.descriptors} file descriptors are open")
        if later.environment != self.environment:
            found.append("the environment has changed")
        if later.directory != self.directory:
            found.append(f"the working directory is {later.directory}")
        found += [f"torch: {b} instead of {a}" for a, b in zip(self.torch_state, later.torch_state, strict=True) if a != b]
        if later.random_state != self.random_state:
            found.append("torch's random generator has moved")
        if later.limits != self.limits:
            found.append(f"limits of the device are {later.limits} instead of {self.limits}")
        return found


def _torch_state() -> tuple[object, ...]:
    cuda = torch.backends.cuda.matmul
    return (
        f"default dtype {torch.get_default_dtype()}",
        f"gradients {torch.is_grad_enabled()}",
        f"inference mode {torch.is_inference_mode_enabled()}",
        f"deterministic algorithms {torch.are_deterministic_algorithms_enabled()}",
        f"matrix product precision {torch.get_float32_matmul_precision()}",
        f"TF32 {cuda.allow_tf32} {torch.backends.cudnn.allow_tf32}",
        f"float16 sums {cuda.allow_fp16_reduced_precision_reduction}",
        f"bfloat16 sums {cuda.allow_bf16_reduced_precision_reduction}",
        f"cudnn benchmark {torch.backends.cudnn.benchmark}",
        f"denormals flushed {not bool((torch.tensor([1e-310], dtype=torch.float64) * 1.0).item())}",
    )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def held_bytes(device: torch.device) -> int:
    """Memory of this process (CPU), or of the device in use by anybody, kernels' own allocations included."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return int(total - free)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def leaked(held_bytes: Sequence[int], calls: int) -> str | None:
    """Why the growth from one measurement to the next, with so many calls in between, is a leak; None if it is not.

    A leak shows every time. Other processes on a GPU come and go.
    """
    growth = min(after - before for before, after in itertools.pairwise(held_bytes))
    if growth * (len(held_bytes) - 1) <= _RESIDENT_SLACK_BYTES:
        return None
    return f"at least {growth >> 10} KiB more memory are held after every {calls} calls"
