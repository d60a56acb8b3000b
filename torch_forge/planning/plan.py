"""The planner's rules: bytes, operations and bound of a problem, the template that serves it, and the steps to take.

An LLM's prompt and the report show the same plan, so every step carries its reason.
"""

from __future__ import annotations

import math

from torch_forge.knowledge.roofline import LATENCY_FLOOR_US, bound_us, classify
from torch_forge.records.device import DeviceInfo
from torch_forge.records.kernels import Plan
from torch_forge.records.problem import Problem
from torch_forge.records.program import Load, Lowered, NotLowered, Op, Part, Reduce, Scan, Statement

TARGET = 1.15
"""Aim: this many times the bound."""


def plan(problem: Problem, lowered: Lowered | NotLowered, device: DeviceInfo) -> Plan:
    """A plan for one problem on one device."""
    bytes_moved = problem.graph.min_bytes
    flops = sum(_flops(part, lowered) for part in lowered.program.parts) if isinstance(lowered, Lowered) else 0
    limit_us = bound_us(bytes_moved, flops, device)
    bound = classify(bytes_moved, flops, device)
    return Plan(
        problem=problem.digest,
        pattern=lowered.program.kind if isinstance(lowered, Lowered) else "free-form",
        bytes_moved=bytes_moved,
        flops=flops,
        bound=bound,
        bound_us=limit_us,
        target_us=max(limit_us * TARGET, LATENCY_FLOOR_US[device.type]),
        lowered=lowered if isinstance(lowered, Lowered) else None,
        steps=tuple(_steps(problem, lowered, bound)),
    )


def reasons_against(lowered: Lowered, device: DeviceInfo) -> list[str]:
    """Why today's templates would be slow on this program, although they could compute it; empty if they suit it."""
    reasons: list[str] = []
    for part in lowered.program.parts:
        if part.row is None:
            continue
        rows, length = math.prod(lowered.value(p) for p in part.outer), lowered.value(part.row)
        if rows * 2 < device.units and rows * length > 1 << 18:
            reasons.append(f"{rows} rows of {length}: too few rows to fill the device; needs a two-stage reduction")
        if any(isinstance(s, Load) and _row_stride(s.index) not in ("0", "1") for s in part.body) and length > 1:
            reasons.append("the row is not contiguous in memory; needs the column template")
    return reasons


def _row_stride(index: object) -> str:
    """Coefficient of the row variable in an index: ``0``, ``1`` or ``other``; a quotient of the row counts as 0."""
    if index == ("row",):
        return "1"
    if isinstance(index, tuple) and index and index[0] == "+":
        found = [r for r in map(_row_stride, index[1:]) if r != "0"]
        return found[0] if len(found) == 1 else "0" if not found else "other"
    if isinstance(index, tuple) and index and index[0] == "*" and ("row",) in index:
        return "other"
    return "0"


def _flops(part: Part, lowered: Lowered) -> int:
    elements = math.prod(lowered.value(p) for p in part.outer) * (lowered.value(part.row) if part.row else 1)
    return elements * sum(_is_arithmetic(s) for s in part.body)


def _is_arithmetic(s: Statement) -> bool:
    return isinstance(s, (Reduce, Scan)) or (isinstance(s, Op) and s.fn != "cast")


def _steps(problem: Problem, lowered: Lowered | NotLowered, bound: str) -> list[str]:
    if isinstance(lowered, NotLowered):
        return [
            f"No template: {'; '.join(lowered.reasons)}.",
            "Write one kernel for the whole graph: every intermediate that stays in registers saves a round trip to memory.",
        ]
    steps = [
        f"Fuse all {len(problem.graph.nodes)} operations into one pass: each input is read once, each output written once."
    ]
    if lowered.program.kind == "row":
        steps.append("Keep a row on chip between its reductions and the output, so that it is not read again.")
    steps.append("Access memory in 16-byte vectors along the contiguous dimension where alignment allows.")
    if bound == "latency":
        steps.append("The launch dominates: one launch, few blocks, no second stage.")
    return steps
