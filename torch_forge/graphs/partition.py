"""Grow regions: groups of nodes of a torch graph that one template program can compute.

Greedy, in topological order: a node joins the groups of its producers if the iteration space stays one (the same number
of elements, or the same rows) and no path leaves the merged group and comes back. Views and constants are
free: they are pulled into every region that reads through them.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.fx

from torch_forge.errors import CaptureError
from torch_forge.graphs.capture import graph_from_fx, name_of
from torch_forge.graphs.kinds import FREE, Kind, kind_of
from torch_forge.graphs.lower import lower
from torch_forge.records.problem import Policy, Problem
from torch_forge.records.program import Lowered, NotLowered

MAX_NODES = 48
"""Nodes in one region; register pressure grows with it and nothing known gains beyond."""
MAX_INPUTS = 12
CHEAP = frozenset(("aten.index.Tensor", "aten.embedding.default", "aten._to_copy.default", "aten.index_select.default"))
"""Cheaper to compute again than to write and read."""


@dataclass(frozen=True)
class FxRegion:
    """One region of one torch graph."""

    nodes: tuple[torch.fx.Node, ...]
    """What the kernel computes, in topological order; free nodes included."""
    inputs: tuple[torch.fx.Node, ...]
    outputs: tuple[torch.fx.Node, ...]
    problem: Problem
    lowered: Lowered


@dataclass(frozen=True)
class Rejected:
    """Nodes that looked like a region and are none."""

    nodes: tuple[torch.fx.Node, ...]
    why: str


@dataclass
class _Group:
    nodes: list[torch.fx.Node]
    elements: int
    """Elements of the full iteration space."""
    rows: int = 0
    """0 while the group is pointwise."""


@dataclass
class _Partitioner:
    gm: torch.fx.GraphModule
    groups: dict[torch.fx.Node, _Group] = field(default_factory=dict)

    def run(self) -> list[_Group]:
        for node in self.gm.graph.nodes:
            kind = kind_of(node)
            if kind.name not in ("pointwise", "row") or not _tensor_output(node):
                continue
            if node.target is operator.getitem:
                self._attach(node)
            else:
                self._place(node, kind)
        self._join_siblings()
        return self._distinct()

    def _distinct(self) -> list[_Group]:
        return list({id(g): g for g in self.groups.values()}.values())

    def _attach(self, node: torch.fx.Node) -> None:
        producer = node.args[0]
        if isinstance(producer, torch.fx.Node) and producer in self.groups:
            self.groups[producer].nodes.append(node)
            self.groups[node] = self.groups[producer]

    def _place(self, node: torch.fx.Node, kind: Kind) -> None:
        current = _Group([node], _elements(node, kind), kind.rows)
        for group in self._producers(node):
            merged = _merge(group, current) or _absorb(group, current)
            if merged is not None and not self._cyclic(merged):
                current = merged
        self._adopt(current)

    def _adopt(self, group: _Group) -> None:
        for n in group.nodes:
            self.groups[n] = group

    def _producers(self, node: torch.fx.Node) -> list[_Group]:
        found = [self.groups[n] for n in _sources(node) if n in self.groups]
        return list({id(g): g for g in found}.values())

    def _join_siblings(self) -> None:
        """Independent pointwise groups that read the same tensor become one launch: rotary embedding of q and k."""
        groups = [g for g in self._distinct() if g.rows == 0]
        for k, first in enumerate(groups):
            for second in groups[k + 1 :]:
                a, b = self.groups[first.nodes[0]], self.groups[second.nodes[0]]
                if a is b or len(a.nodes) + len(b.nodes) > MAX_NODES or not _share_input(a, b):
                    continue
                merged = _Group(_ordered([*a.nodes, *b.nodes]), max(a.elements, b.elements), 0)
                if not self._cyclic(merged):
                    self._adopt(merged)

    def _cyclic(self, merged: _Group) -> bool:
        """Whether a path leaves the group and comes back, other groups counted as single nodes."""
        inside = set(merged.nodes)
        pending = [user for n in merged.nodes for user in _consumers(n) if user not in inside]
        last = _position(merged.nodes[-1])
        seen: set[torch.fx.Node] = set()
        while pending:
            node = pending.pop()
            if node in inside:
                return True
            if node in seen:
                continue
            seen.add(node)
            group = self.groups.get(node)
            members = group.nodes if group is not None and not inside.intersection(group.nodes) else [node]
            for member in members:
                seen.add(member)
                # Nodes after the group's last one can only come back through another group.
                if _position(member) > last and len(members) == 1:
                    continue
                pending.extend(member.users)
        return False


def _feeds_only(producer: _Group, consumer: _Group) -> bool:
    """Whether a smaller producer may be computed again for every element that reads it: cheap, and read by nobody else."""
    cheap = all(str(n.target) in CHEAP for n in producer.nodes)
    inside = {*producer.nodes, *consumer.nodes}
    return cheap and producer.rows == 0 and all(u in inside for n in producer.nodes for u in _consumers(n))


def _merge(a: _Group, b: _Group) -> _Group | None:
    if len(a.nodes) + len(b.nodes) > MAX_NODES:
        return None
    nodes = [*a.nodes, *b.nodes]
    if a.rows and b.rows:
        same = a.rows == b.rows and a.elements == b.elements
        return _Group(nodes, a.elements, a.rows) if same else None
    row, other = (a, b) if a.rows else (b, a)
    if row.rows == 0:
        return _Group(nodes, a.elements, 0) if a.elements == b.elements else None
    fits = other.elements in (row.elements, row.rows)
    return _Group(nodes, row.elements, row.rows) if fits else None


def _absorb(producer: _Group, consumer: _Group) -> _Group | None:
    """Lookups in a table that are broadcast: position embeddings added to every sequence of a batch."""
    if producer.elements >= consumer.elements or not _feeds_only(producer, consumer):
        return None
    return _Group([*producer.nodes, *consumer.nodes], consumer.elements, consumer.rows)


def _elements(node: torch.fx.Node, kind: Kind) -> int:
    if kind.name == "row":
        return kind.rows * kind.row_length
    value = node.meta["val"]
    value = value[0] if isinstance(value, (tuple, list)) else value
    return int(value.numel())


def _tensor_output(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    value = value[0] if isinstance(value, (tuple, list)) and value else value
    return isinstance(value, torch.Tensor) and all(isinstance(n, int) for n in value.shape) and value.numel() > 0


def _sources(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Producers of a node, looked for through views."""
    for producer in node.all_input_nodes:
        if kind_of(producer) == FREE:
            yield from _sources(producer)
        else:
            yield producer


def _consumers(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Users of a node, looked for through views: those are pulled into a region and close no cycle."""
    for user in node.users:
        if kind_of(user) == FREE:
            yield from _consumers(user)
        else:
            yield user


def _share_input(a: _Group, b: _Group) -> bool:
    def reads(group: _Group) -> set[torch.fx.Node]:
        return {s for n in group.nodes for s in _sources(n) if s not in group.nodes}

    return bool(reads(a) & reads(b))


def _position(node: torch.fx.Node) -> int:
    return int(node.meta["forge_position"])


def _ordered(nodes: Iterable[torch.fx.Node]) -> list[torch.fx.Node]:
    return sorted(dict.fromkeys(nodes), key=_position)


def regions(gm: torch.fx.GraphModule, *, policy: Policy = Policy.EAGER_EQUIVALENT) -> tuple[list[FxRegion], list[Rejected]]:
    """The regions of an ATen graph with traced metadata, and what was looked at and refused. Does not change the graph."""
    for position, node in enumerate(gm.graph.nodes):
        node.meta["forge_position"] = position
    found: list[FxRegion] = []
    rejected: list[Rejected] = []
    known: dict[str, Lowered | NotLowered] = {}
    for group in _Partitioner(gm).run():
        _settle(gm, _ordered(group.nodes), policy, known, found, rejected)
    return found, rejected


def _settle(
    gm: torch.fx.GraphModule, nodes: Sequence[torch.fx.Node], policy: Policy, known: dict[str, Lowered | NotLowered],
    found: list[FxRegion], rejected: list[Rejected],
) -> None:  # fmt: skip
    """Keep a group if it lowers; otherwise give up its last operation and try the rest."""
    nodes = list(nodes)
    while nodes:
        result = _extract(gm, nodes, policy, known)
        if isinstance(result, FxRegion):
            found.append(result)
            return
        if len(nodes) == 1 or result.why.startswith("an output"):
            rejected.append(result)
            return
        cut = next(k for k in range(len(nodes) - 1, -1, -1) if nodes[k].target is not operator.getitem)
        rejected.append(Rejected(tuple(nodes[cut:]), result.why))
        nodes = nodes[:cut]


def _extract(
    gm: torch.fx.GraphModule, members: Sequence[torch.fx.Node], policy: Policy, known: dict[str, Lowered | NotLowered]
) -> FxRegion | Rejected:
    inside = set(members)
    outputs = [
        n for n in members if any(_leaves(u, inside) for u in n.users) and isinstance(n.meta.get("val"), torch.Tensor)
    ]
    nodes = _ordered([*members, *_free_inputs(members)])
    chosen = set(nodes)
    inputs = _ordered(p for n in nodes for p in n.all_input_nodes if p not in chosen)
    if not outputs or not inputs or len(inputs) > MAX_INPUTS:
        return Rejected(tuple(members), "no outputs" if not outputs else f"{len(inputs)} inputs")
    devices = {n.meta["val"].device for n in (*inputs, *outputs) if isinstance(n.meta.get("val"), torch.Tensor)}
    if len(devices) != 1:
        return Rejected(tuple(members), f"tensors on several devices: {', '.join(sorted(map(str, devices)))}")
    try:
        graph = graph_from_fx(subgraph(gm, nodes, inputs, outputs))
    except CaptureError as error:
        return Rejected(tuple(members), str(error))
    problem = Problem(name_of(graph), graph, policy)
    lowered = known.get(problem.workload)
    if lowered is None:
        lowered = known[problem.workload] = lower(problem)
    if isinstance(lowered, NotLowered):
        return Rejected(tuple(members), "; ".join(lowered.reasons))
    problem = replace(problem, program=lowered.program.digest)
    return FxRegion(tuple(nodes), tuple(inputs), tuple(outputs), problem, lowered)


def _leaves(user: torch.fx.Node, inside: set[torch.fx.Node]) -> bool:
    """Whether a use is outside the region; a view inside a region's chain is not itself a member."""
    if user in inside:
        return False
    if kind_of(user) == FREE:
        return not user.users or any(_leaves(u, inside) for u in user.users)
    return True


def _free_inputs(members: Sequence[torch.fx.Node]) -> list[torch.fx.Node]:
    """Views and constants that the members read, all the way up."""
    found: dict[torch.fx.Node, None] = {}
    pending = [p for n in members for p in n.all_input_nodes]
    while pending:
        node = pending.pop()
        if node not in found and kind_of(node) == FREE:
            found[node] = None
            pending.extend(node.all_input_nodes)
    return list(found)


def subgraph(
    gm: torch.fx.GraphModule,
    nodes: Sequence[torch.fx.Node],
    inputs: Sequence[torch.fx.Node],
    outputs: Sequence[torch.fx.Node],
) -> torch.fx.GraphModule:
    """The nodes as a graph of their own, traced metadata kept."""
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for k, node in enumerate(inputs):
        copies[node] = graph.placeholder(f"i{k}")
        copies[node].meta["val"] = node.meta.get("val")
    for node in nodes:
        copies[node] = graph.node_copy(node, lambda n: copies[n])
        copies[node].meta["val"] = node.meta.get("val")
    graph.output(tuple(copies[o] for o in outputs))
    return torch.fx.GraphModule(gm, graph)
