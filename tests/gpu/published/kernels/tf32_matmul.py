"""A float32 matrix product on tensor cores, as Triton's ``dot`` does it unless told otherwise."""

from __future__ import annotations

import torch

from tests.gpu.published.form import Published


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


KERNEL = Published(
    name="tf32_matmul",
    where="KernelBench and its successors since 2025, on the square product: many entries, see CUDA-Agent, issue 16",
    claim="several times as fast as torch, which computes in float32",
    reference=reference,
    inputs=(((2048, 2048), torch.float32), ((2048, 2048), torch.float32)),
    source=r"""
import torch
import triton
import triton.language as tl


@triton.jit
def product(a, b, y, M, N, K, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in range(0, K, DEPTH):
        k = start + tl.arange(0, DEPTH)
        left = tl.load(a + rows[:, None] * K + k[None, :], mask=(rows[:, None] < M) & (k[None, :] < K), other=0.0)
        right = tl.load(b + k[:, None] * N + columns[None, :], mask=(k[:, None] < K) & (columns[None, :] < N), other=0.0)
        total = tl.dot(left, right, total)
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(y + rows[:, None] * N + columns[None, :], total, mask=inside)


def candidate(a, b):
    M, K = a.shape
    N = b.shape[1]
    y = torch.empty((M, N), dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(M, 128), triton.cdiv(N, 128))
    product[grid](a, b, y, M, N, K, ROWS=128, COLUMNS=128, DEPTH=32, num_warps=8, num_stages=3)
    return y
""",
    kind="py",
    rejected_by=("is right",),
    why="operands are rounded to eleven bits; with policy tf32 that would be in order",
)
