"""Rank regions by what a perfect kernel could gain, and say for every hot operation left alone why.

A region's cost is the profiled time of the operations inside it. Its headroom is that cost minus the time
in which the device could move its bytes. Share times headroom decides, nothing else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.fx

from torch_forge.graphs.kinds import FREE, kind_of
from torch_forge.graphs.partition import FxRegion, Rejected
from torch_forge.knowledge.roofline import memory_us
from torch_forge.records.device import DeviceInfo
from torch_forge.records.profile import LeftAlone, OpCost, Profile, Region, Selection

HOT_SHARE = 0.01
"""Operations below this share of the model's time are not worth a line of the report."""
MIN_GAIN_SHARE = 0.002
"""Regions that could gain less than this share of the model's time are left alone."""

_COMPUTE_BOUND = frozenset(
    [
        "aten.mm",
        "aten.addmm",
        "aten.bmm",
        "aten.baddbmm",
        "aten.convolution",
        "aten.linear",
        "aten.matmul",
        "aten.cudnn_convolution",
        "aten.mkldnn_convolution",
    ]
)


@dataclass(frozen=True)
class Costs:
    """Profiled time per call of an operation at given shapes."""

    by_call: Mapping[tuple[str, tuple[tuple[int, ...], ...]], OpCost]

    @classmethod
    def of(cls, profile: Profile) -> Costs:
        table: dict[tuple[str, tuple[tuple[int, ...], ...]], OpCost] = {}
        for cost in profile.ops:
            table.setdefault((cost.op, cost.shapes), cost)
        return cls(table)

    def per_call(self, node: torch.fx.Node) -> OpCost | None:
        """The profiled operation that a graph node stands for; None for views and for what the profile did not see."""
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            return None
        name = f"aten.{node.target._opname}"
        shapes = tuple(tuple(v.shape) for n in node.all_input_nodes if isinstance(v := n.meta.get("val"), torch.Tensor))
        return self.by_call.get((name, shapes))


def select(
    regions: Sequence[FxRegion], rejected: Sequence[Rejected], profile: Profile, device: DeviceInfo, *, limit: int = 64
) -> Selection:
    """Regions worth forging, best first, one per workload; and what is left alone, with reasons."""
    costs = Costs.of(profile)
    groups: dict[str, list[FxRegion]] = defaultdict(list)
    for region in regions:
        groups[region.problem.workload].append(region)
    total = max(profile.total_us, 1e-9)
    ranked = sorted((_region(group, costs, total, device) for group in groups.values()), key=lambda r: -r.headroom_us)
    chosen = [r for r in ranked if r.headroom_us / total >= MIN_GAIN_SHARE][:limit]
    left = [_too_small(r) for r in ranked if r not in chosen and r.share >= HOT_SHARE]
    left += _uncovered(profile, regions, rejected, costs, total)
    return Selection(tuple(chosen), tuple(sorted(left, key=lambda x: -x.share)))


def _region(group: Sequence[FxRegion], costs: Costs, total_us: float, device: DeviceInfo) -> Region:
    first = group[0]
    found = [c for n in first.nodes if (c := costs.per_call(n)) is not None]
    each_us = sum(c.self_us / c.calls for c in found)
    if not found:  # not in the profile by name: assume one pass per operation
        work = [n for n in first.nodes if kind_of(n) != FREE]
        each_us = len(work) * memory_us(first.problem.graph.min_bytes, device)
    bound_us = memory_us(first.problem.graph.min_bytes, device)
    module = max(found, key=lambda c: c.self_us).module if found else ""
    calls = len(group)
    return Region(first.problem, calls, each_us * calls, min(1.0, each_us * calls / total_us), bound_us * calls, module)


def _too_small(region: Region) -> LeftAlone:
    return LeftAlone(
        region.problem.name, region.share, f"could gain at most {region.headroom_us:.0f} us a run: it is at its memory bound"
    )


def _uncovered(
    profile: Profile,
    regions: Sequence[FxRegion],
    rejected: Sequence[Rejected],
    costs: Costs,
    total_us: float,
) -> list[LeftAlone]:
    """Hot profiled operations that no region contains."""
    reasons: dict[str, str] = {}
    for r in rejected:
        for n in r.nodes:
            if isinstance(n.target, torch._ops.OpOverload):
                reasons.setdefault(f"aten.{n.target._opname}", r.why)
    inside = {id(c) for region in regions for n in region.nodes if (c := costs.per_call(n)) is not None}
    shares: dict[str, float] = defaultdict(float)
    for cost in profile.ops:
        if id(cost) not in inside:
            shares[cost.op] += cost.self_us / total_us
    return [LeftAlone(op, share, _why_not(op, reasons)) for op, share in shares.items() if share >= HOT_SHARE]


def _why_not(op: str, reasons: Mapping[str, str]) -> str:
    if op in _COMPUTE_BOUND:
        return "a matrix product or convolution: the vendor library is the peer, and no template here beats it yet"
    if "scaled_dot_product" in op or "attention" in op:
        return "attention: already one fused kernel"
    return reasons.get(op, "no template for this operation")
