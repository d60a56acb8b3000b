"""A problem: a small graph of ATen operations that one kernel is to replace.

The graph is canonical (values named by position, dead code gone), so the same computation found in
two models is one problem. Two identities matter:

* ``Problem.digest`` leaves sizes out wherever they enter only through shapes: RMSNorm over 4096 and
  over 8192 columns are one problem;
* ``Problem.workload`` includes every shape, stride and element type: it names one exact case.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch_forge.errors import UsageError
from torch_forge.records.codec import digest
from torch_forge.records.tensors import TensorSpec


class Policy(enum.Enum):
    """How far a kernel's numbers may be from eager's; recorded in every certificate."""

    BITWISE = "bitwise"
    """Bit for bit eager's result."""
    EAGER_EQUIVALENT = "eager-equivalent"
    """Error against float64 no worse than a small multiple of eager's own."""
    TF32 = "tf32"
    """As eager-equivalent, matrix products in TF32."""
    BF16 = "bf16"
    """As eager-equivalent, matrix products in bfloat16."""

    @classmethod
    def of(cls, value: str | Policy) -> Policy:
        """The policy of this name. Raises UsageError, with the names there are."""
        try:
            return cls(value)
        except ValueError as error:
            known = ", ".join(p.value for p in cls)
            raise UsageError(f"policy {value!r} is not known", advice=f"Use one of: {known}.") from error


REF = "%"
"""Prefix of a string argument that names another value: ``%i0`` is input 0, ``%v3`` node 3, ``%v3.1`` its second result."""
DTYPE = "@"
"""Prefix of a string argument that names an element type: ``@float32``."""

LAYOUT = "#"
"""Prefix of a string argument that names a memory format: ``#contiguous_format``."""

SIZE_OPS = frozenset(
    f"aten.{name}"
    for name in (
        "view.default", "_unsafe_view.default", "reshape.default", "expand.default", "full.default", "slice.Tensor",
        "split.Tensor", "split_with_sizes.default", "arange.default", "arange.start", "arange.start_step",
        "narrow.default", "new_zeros.default", "zeros.default", "ones.default", "new_full.default",
        "native_group_norm.default",
    )
)  # fmt: skip
"""Operations whose integer arguments are sizes."""


def frozen_args(value: Any) -> Any:
    """Lists to tuples, all the way down, so that arguments are hashable and equal after a JSON round trip."""
    return tuple(frozen_args(v) for v in value) if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True)
class Node:
    """One ATen call: ``op`` as ``aten.add.Tensor``; its value is named ``%v<position>``."""

    op: str
    args: tuple[Any, ...]
    """None, bool, int, float, str, tuples of these; references, element types and memory formats as prefixed strings."""
    kwargs: tuple[tuple[str, Any], ...]
    outputs: tuple[TensorSpec, ...]
    """One spec per result; most operations have one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "args", frozen_args(self.args))
        object.__setattr__(self, "kwargs", frozen_args(self.kwargs))


@dataclass(frozen=True)
class Graph:
    """A pure function of tensors: every input is a tensor, every output a value of the graph."""

    inputs: tuple[TensorSpec, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    """References: ``%v7`` (or ``%i0`` where an input is returned as it is)."""

    def spec(self, ref: str) -> TensorSpec:
        """The tensor behind a reference."""
        name, _, index = ref.removeprefix(REF).partition(".")
        if name[0] == "i":
            return self.inputs[int(name[1:])]
        return self.nodes[int(name[1:])].outputs[int(index or 0)]

    @property
    def output_specs(self) -> tuple[TensorSpec, ...]:
        return tuple(self.spec(ref) for ref in self.outputs)

    @cached_property
    def min_bytes(self) -> int:
        """Bytes that any kernel must move: each input read once, each output written once."""
        return sum(s.unique_bytes for s in self.inputs) + sum(s.numel * s.itemsize for s in self.output_specs)


@dataclass(frozen=True)
class Problem:
    """What one kernel has to compute, and how exactly."""

    name: str
    """Short and readable, from the operations (``softmax``, ``add_rms_norm``); not part of the identity."""
    graph: Graph
    policy: Policy = Policy.EAGER_EQUIVALENT
    program: str = ""
    """``Program.digest`` of its loop form, where it has one: the better identity, since it sees through ranks and views."""

    @cached_property
    def digest(self) -> str:
        """Identity without sizes; see the module docstring."""
        return digest((self.program or symbolic_form(self.graph), self.policy))

    @cached_property
    def workload(self) -> str:
        """Identity with every shape, stride and element type."""
        return digest((self.graph, self.policy))


def symbolic_form(graph: Graph) -> list[object]:
    """The graph with each input size above 1 replaced by a symbol, in inputs and in size arguments.

    Equal sizes share a symbol. This can tell apart two cases that are one (a square one), which costs a
    second entry; it cannot join two that differ, since shapes stay part of every certificate.
    """
    symbols: dict[int, str] = {}
    for spec in graph.inputs:
        for n in spec.shape:
            if n > 1:
                symbols.setdefault(n, f"s{len(symbols)}")

    def sizes(value: Any) -> Any:
        if isinstance(value, tuple):
            return [sizes(v) for v in value]
        return symbols.get(value, value) if type(value) is int else value

    inputs = [[sizes(s.shape), s.dtype] for s in graph.inputs]
    nodes = [
        [n.op, sizes(n.args) if n.op in SIZE_OPS else n.args, n.kwargs, [s.dtype for s in n.outputs]] for n in graph.nodes
    ]
    return [inputs, nodes, list(graph.outputs)]
