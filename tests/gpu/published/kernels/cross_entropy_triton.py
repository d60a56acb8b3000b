"""Cross-entropy over a vocabulary in Triton: maximum and sum of a row in one pass, without a tensor of probabilities."""

from __future__ import annotations

import torch

from tests.gpu.published.form import Published


def reference(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits.float(), target, reduction="none")


KERNEL = Published(
    name="cross_entropy_triton",
    where="LinkedIn, Liger-Kernel, arXiv 2410.10989, 2024; the forward pass alone",
    claim="about 3 times as fast, with a fifth of the memory, at a vocabulary of 163,840 (A100)",
    reference=reference,
    inputs=(((4096, 32000), torch.bfloat16), ((4096,), torch.int64)),
    source=r"""
import torch
import triton
import triton.language as tl


@triton.jit
def losses(logits, target, loss, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    wanted = tl.load(target + row)
    largest = -float("inf")
    total = 0.0
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        v = tl.load(logits + row * columns + at, mask=at < columns, other=-float("inf")).to(tl.float32)
        new = tl.maximum(largest, tl.max(v, 0))
        base = tl.where(new == -float("inf"), 0.0, new)
        total = total * tl.exp(largest - base) + tl.sum(tl.exp(v - base), 0)
        largest = new
    counts = wanted != -100
    chosen = tl.load(logits + row * columns + tl.where(counts, wanted, 0)).to(tl.float32)
    tl.store(loss + row, tl.where(counts, tl.log(total) - (chosen - largest), 0.0))


def candidate(logits, target):
    rows, columns = logits.shape
    loss = torch.empty(rows, dtype=torch.float32, device=logits.device)
    losses[(rows,)](logits, target, loss, columns, BLOCK=4096, num_warps=8)
    return loss
""",
    kind="py",
    why="a row of minus infinity alone is looked after, targets that do not count are zero",
    any_size=True,
)
