"""The gate of a feed-forward layer in Triton: both operations in one pass."""

from __future__ import annotations

import torch

from tests.gpu.published.form import Published


def reference(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(gate) * up


KERNEL = Published(
    name="swiglu_triton",
    where="LinkedIn, Liger-Kernel, arXiv 2410.10989, 2024",
    claim="as fast as the module of Hugging Face with a third less memory (A100)",
    reference=reference,
    inputs=(((4096, 11008), torch.bfloat16), ((4096, 11008), torch.bfloat16)),
    source=r"""
import torch
import triton
import triton.language as tl


@triton.jit
def swiglu(gate, up, y, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    g = tl.load(gate + at, mask=inside).to(tl.float32)
    u = tl.load(up + at, mask=inside)
    tl.store(y + at, (g / (1.0 + tl.exp(-g))).to(u.dtype) * u, mask=inside)


def candidate(gate, up):
    y = torch.empty_like(gate)
    count = gate.numel()
    swiglu[(triton.cdiv(count, 2048),)](gate, up, y, count, BLOCK=2048, num_warps=8)
    return y
""",
    kind="py",
    why="float32 inside, rounded where eager rounds",
    any_size=True,
)
