"""What a template asks of a lowered program before it writes a line: types, sizes, index width, titles."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch_forge.generation.templates.expressions import STORAGE, Names, c_name
from torch_forge.generation.templates.schedule import name_of, unrounded, value_dtypes
from torch_forge.generation.templates.terms import atoms, divisors, terms
from torch_forge.records.device import DeviceInfo
from torch_forge.records.kernels import Candidate, Config, Origin
from torch_forge.records.problem import Problem
from torch_forge.records.program import CheckedIndex, Index, IndexValue, Load, Lowered, Part, Statement, Store
from torch_forge.records.tensors import DTYPES, TensorSpec

NARROW_LIMIT = 2**31 - 2**20
"""Spans below this are indexed in 32 bits; the margin is for the last tile's overshoot."""
WIDE_LIMIT = 2**62


@dataclass(frozen=True)
class Job:
    """One request to a template."""

    problem: Problem
    lowered: Lowered
    device: DeviceInfo
    origin: Origin

    @property
    def tensor_dtypes(self) -> tuple[str, ...]:
        return tuple(t.dtype for t in self.lowered.program.tensors)

    def size(self, param: str) -> int:
        return self.lowered.value(param)

    def outer_numel(self, part: Part) -> int:
        """Rows of a row part, elements of a pointwise part."""
        return math.prod(self.size(p) for p in part.outer)

    def pointer(self, tensor: int) -> str:
        """``in0``, ``out1``: the C name of a tensor's data."""
        t = self.lowered.program.tensors[tensor]
        return f"{t.role}{t.position}"

    def storage(self, tensor: int) -> str:
        """C type of a tensor's elements."""
        return STORAGE[self.lowered.program.tensors[tensor].dtype]

    @property
    def index_bits(self) -> int:
        """32 if every tensor's span and iteration space of this workload allows it."""
        graph = self.problem.graph
        largest = max((span(s) for s in (*graph.inputs, *graph.output_specs)), default=0)
        for part in self.lowered.program.parts:
            largest = max(largest, self.outer_numel(part) * (self.size(part.row) if part.row else 1))
        return 32 if largest < NARROW_LIMIT else 64

    def candidate(self, template: str, source: str, configs: tuple[Config, ...], statics: Mapping[str, int]) -> Candidate:
        """The record for a finished source."""
        return Candidate(
            problem=self.problem.digest,
            name=self.problem.name,
            backend=self.device.type,
            source=source,
            origin=self.origin,
            author=template,
            configs=configs,
            statics=dict(statics),
            program=self.lowered.program.digest,
        )

    @property
    def align_bytes(self) -> int:
        """The largest element: what any allocation guarantees."""
        return max((DTYPES[d].nbytes for d in self.tensor_dtypes), default=1)


def span(spec: TensorSpec) -> int:
    """Elements from the first to the last of a tensor, both included."""
    if spec.numel == 0:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(spec.shape, spec.stride, strict=True))


def index_limit(candidate: Candidate) -> int:
    """The largest span, in elements, that a template's kernel can index: ``Certificate.max_numel``."""
    return NARROW_LIMIT if candidate.source.startswith("// forge: index_bits=32") else WIDE_LIMIT


def names_for(body: tuple[Statement, ...], tensor_dtypes: tuple[str, ...], *, narrow: bool) -> Names:
    """Types of all values and their C names; ``narrow``: 32-bit indexing, so unit-stride positions fit in 32 bits."""
    dtypes = value_dtypes(body, tensor_dtypes)
    small = frozenset(s.name for s in body if narrow and isinstance(s, IndexValue) and _is_small(s.index))
    names = Names({}, dtypes, unrounded(body, tensor_dtypes), small)
    for s in body:
        name = name_of(s)
        if name is not None:
            names.text[name] = c_name(name)
    return names


def _is_small(index: Index) -> bool:
    """A loop variable, plus a small literal, minus at most one size: as small as a span."""
    found = terms(index)
    literals = [t for t in found if not t.atoms and not t.params]
    loops = [t for t in found if len(t.atoms) == 1 and not t.params and t.atoms[0][0] in ("d", "row") and t.coefficient == 1]
    sizes = [t for t in found if len(t.params) == 1 and not t.atoms and t.coefficient == -1]
    known = len(literals) + len(loops) + len(sizes) == len(found)
    return known and len(loops) <= 1 and len(sizes) <= 1 and all(abs(t.coefficient) < 2**19 for t in literals)


def indexes(body: Iterable[Statement]) -> list[Index]:
    """Every index expression of a body."""
    return [
        s.size if isinstance(s, CheckedIndex) else s.index
        for s in body
        if isinstance(s, (Load, Store, IndexValue, CheckedIndex))
    ]


def division_params(body: Iterable[Statement]) -> set[str]:
    """Parameters by which the body divides for each element."""
    return {p for index in indexes(body) for p in divisors(index)}


def params_of(part: Part) -> set[str]:
    """Every parameter that the part uses."""
    found = {a[1] for index in indexes(part.body) for a in atoms(index) if a[0] == "p"}
    return found | set(part.outer) | ({part.row} if part.row else set())


def title(job: Job, template: str) -> str:
    """First line of the header comment."""
    return f"{job.problem.name} on {job.device.type}, template '{template}', written by torch_forge."
