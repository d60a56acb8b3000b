"""A workload is data: a plain PyTorch function and a description of its arguments.

Because arguments are described and not made, the traffic that no kernel can avoid is counted on the meta device,
without a GPU and without the memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch_forge.records.tensors import DTYPES

if TYPE_CHECKING:
    from torch import Tensor

Function = Callable[..., Any]

BIG_NEGATIVE = -3.0e38
"""What attention masks hold where a position is hidden; finite in bfloat16 and float32."""


@dataclass(frozen=True)
class Arg:
    """How to draw one tensor argument."""

    shape: tuple[int, ...]
    dtype: str = "bfloat16"
    fill: str = "normal"
    """``normal``; ``positive`` (uniform, 0.5 to 1.5); ``index`` (integers below ``high``); ``mask`` (0, or ``BIG_NEGATIVE``
    for 30 %)."""
    high: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return math.prod(self.shape) * DTYPES[self.dtype].nbytes

    def draw(self, device: str) -> Tensor:
        """The tensor, contiguous, from torch's global generator."""
        import torch

        dtype = getattr(torch, self.dtype)
        match self.fill:
            case "normal":
                return torch.randn(self.shape, dtype=dtype, device=device)
            case "positive":
                return (torch.rand(self.shape, device=device) + 0.5).to(dtype)
            case "index":
                return torch.randint(self.high, self.shape, dtype=dtype, device=device)
            case "mask":
                return torch.where(torch.rand(self.shape, device=device) < 0.3, BIG_NEGATIVE, 0.0).to(dtype)
        raise ValueError(f"no such fill: {self.fill}")


@dataclass(frozen=True)
class Workload:
    """One benchmark: a function as users write it, on exact shapes."""

    name: str
    group: str
    """``mem`` (bound by memory traffic), ``lat`` (by the launch) or ``gemm`` (matrix products)."""
    function: Function
    args: tuple[Arg, ...]

    def make(self, device: str, *, seed: int = 0) -> tuple[Function, tuple[Tensor, ...]]:
        """The function and fresh arguments; the caller's random state is left as it was."""
        import torch

        devices = [torch.device(device)] if device.startswith("cuda") else []
        with torch.random.fork_rng(devices=devices, device_type="cuda"):
            torch.manual_seed(seed)
            return self.function, tuple(arg.draw(device) for arg in self.args)

    @property
    def min_bytes(self) -> int:
        """Bytes that any implementation moves: arguments read once, results written once."""
        import torch
        from torch.utils import _pytree as pytree

        results = pytree.tree_leaves(self.function(*(arg.draw("meta") for arg in self.args)))
        written = sum(t.numel() * t.element_size() for t in results if isinstance(t, torch.Tensor))
        return sum(arg.nbytes for arg in self.args) + written
