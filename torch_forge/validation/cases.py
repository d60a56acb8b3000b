"""Which inputs a kernel is judged on: distributions, misaligned pointers, other sizes, other bytes under the same pointers.

A case is a recipe (seed and distribution), not data; judge and worker draw the same inputs from it. Each case belongs to the
gate that a kernel fails if it is wrong there only.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from torch_forge.graphs.inputs import change_one, draw_inputs
from torch_forge.graphs.place import NAN_BYTE, Placed
from torch_forge.records.problem import Problem

QUICK = ("normal", "shifted", "special")
SPARE = ("positive", "small_ints", "wide")
"""Tried in turn where the quick ones cannot tell some wrong result from the right one."""
FULL = ("positive", "wide", "cancelling", "small_ints", "extreme", "constant_rows", "one_hot", "mixed", "mixed_swapped")
_GATES = {
    "special": "special values", "extreme": "special values",
    "wide": "wide values", "cancelling": "wide values",
    "small_ints": "patterns", "constant_rows": "patterns", "one_hot": "patterns",
    "mixed": "mixed regimes", "mixed_swapped": "mixed regimes",
}  # fmt: skip
PLAIN = "is right"
"""The gate of ordinary inputs."""
HIDDEN = 3
"""Cases of sizes that are drawn after the kernel is built."""


@dataclass(frozen=True, slots=True)
class Case:
    """One set of inputs."""

    name: str
    """``normal``, ``normal, misaligned``, ``normal, 1023 for 1024`` ...; unique in a list of cases."""
    distribution: str
    seed: int
    offsets: tuple[int, ...]
    """How many elements each input's pointer is from its alignment; where any is, only config 0 has to work."""
    problem: Problem
    """The problem itself or a resized one."""
    gate: str = PLAIN
    reach: float = 0.0
    """Above 0: one random element is changed by so much."""

    @property
    def misaligned(self) -> bool:
        return any(self.offsets)

    def draw(self, device: torch.device, *, zone: int = NAN_BYTE, guarded: bool = False) -> list[Placed]:
        """The inputs, the same bytes in every process on the same type of device."""
        placed = draw_inputs(
            self.problem.graph,
            seed=self.seed,
            distribution=self.distribution,
            device=device,
            offset_elements=self.offsets,
            zone=zone,
            guarded=guarded,
        )
        if self.reach:
            change_one(self.problem.graph, placed, seed=self.seed + len(self.name), reach=self.reach)
        return placed


def case(
    problem: Problem, distribution: str, seed: int, *, note: str = "", offsets: Sequence[int] = (), gate: str = ""
) -> Case:
    """A case whose inputs depend on the master seed and on its name."""
    name = f"{distribution}, {note}" if note else distribution
    own = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:6], "little")
    filled = tuple(offsets) or (0,) * len(problem.graph.inputs)
    return Case(name, distribution, own, filled, problem, gate or _GATES.get(distribution, PLAIN))


SMALL_BYTES = 24 << 20
"""Output of the problem that most cases use in place of a larger one: far beyond one wave of blocks on any device."""


def smaller(problem: Problem, accept: Callable[[Problem], bool]) -> Problem:
    """The problem with its outer sizes reduced until its tensors are a few megabytes; itself if it is small or cannot be.

    accept: whether a resized problem still is of the same class. Row lengths and inner strides, for which a kernel may be
    compiled, stay; sizes that change become odd.
    """
    from torch_forge.graphs.resize import resize

    for n in _leading_sizes(problem):
        excess = _nbytes(problem) / SMALL_BYTES
        if excess <= 1:
            break
        target = max(3, int(n / excess)) | 1
        other = resize(problem, {n: target}) if target < n else None
        if other is not None and accept(other):
            problem = other
    return problem


def _nbytes(problem: Problem) -> int:
    graph = problem.graph
    return max(sum(s.numel * s.itemsize for s in graph.output_specs), sum(s.unique_bytes for s in graph.inputs))


def _leading_sizes(problem: Problem) -> list[int]:
    """Sizes of the outer dimensions of the largest input, outermost first; never one that is an innermost size somewhere."""
    largest = max(problem.graph.inputs, key=lambda s: s.numel)
    innermost = {s.shape[-1] for s in problem.graph.inputs if len(s.shape) > 1} | set(largest.shape[-1:])
    return list(dict.fromkeys(n for n in largest.shape[:-1] if n > 1 and n not in innermost))


def real_case(problem: Problem, seed: int) -> Case:
    """The exact workload once, for a winner."""
    return case(problem, "shifted", seed, note="real size", gate="real size")


def quick_cases(problem: Problem, seed: int, off: Collection[str] = ()) -> list[Case]:
    """One shape with three distributions, and once with all pointers aligned to one element only."""
    inputs = len(problem.graph.inputs)
    cases = [
        *(case(problem, d, seed) for d in QUICK),
        case(problem, "shifted", seed, note="misaligned", offsets=(1,) * inputs, gate="misaligned"),
    ]
    return [c for c in cases if c.gate not in off]


_ALONE = 4
"""Inputs of which each is misaligned by itself once."""


def full_cases(problem: Problem, seed: int, *, sums: bool, off: Collection[str] = ()) -> list[Case]:
    """What the quick cases leave out. ``sums``: the graph adds elements up, so the largest numbers only overflow."""
    kept = [d for d in FULL if not (sums and d == "extreme")]
    cases = [*(case(problem, d, seed) for d in kept), case(problem, "normal", seed, note="another seed")]
    inputs = len(problem.graph.inputs)
    if inputs > 1:
        for k in range(min(inputs, _ALONE)):
            offsets = tuple(3 if j == k else 0 for j in range(inputs))
            cases.append(case(problem, "shifted", seed, note=f"input {k} misaligned", offsets=offsets, gate="misaligned"))
    return [c for c in cases if c.gate not in off]


def pointer_cases(problem: Problem, seed: int) -> list[Case]:
    """Other bytes under the same pointers: all of them new, then one element changed, then the very first ones again."""
    new = case(problem, "shifted", seed, note="same pointers", gate="same pointers")
    changed = [
        replace(new, name=f"shifted, same pointers, one element changed, {k}", reach=reach)
        for k, reach in enumerate(_REACHES)
    ]
    again = replace(case(problem, "normal", seed), name="normal, same pointers, once more", gate="same pointers")
    return [new, *changed, again]


_REACHES = (8.0, 512.0)
"""How far the one element moves: not so far that it swamps a row, and so far that a long sum shows it."""


def resized_cases(problem: Problem, seed: int) -> Iterator[Case]:
    """The problem at other sizes, for kernels that serve a class of shapes; the sizes that a graph allows."""
    for changed in _changes(_sizes(problem)):
        yield from _resized(problem, changed, seed, "other sizes")


def hidden_cases(problem: Problem, seed: int, artefact: str, accept: Callable[[Case], bool]) -> list[Case]:
    """Sizes that depend on the built kernel's own hash, so that nobody who wrote it can have known them.

    artefact: its SHA-256. accept: whether the kernel claims to serve a case.
    """
    drawn = random.Random(f"{seed}/{artefact}")
    sizes = _sizes(problem)
    found: list[Case] = []
    for _ in range(8 * HIDDEN):
        if not sizes or len(found) == HIDDEN:
            break
        kept = drawn.randrange(len(sizes) + 1)
        changed = {n: drawn.randint(1, max(2, n + n // 2)) for k, n in enumerate(sizes) if k != kept}
        found += [c for c in _resized(problem, changed, seed, "hidden sizes") if accept(c)]
    return found


def _resized(problem: Problem, changed: dict[int, int], seed: int, gate: str) -> Iterator[Case]:
    from torch_forge.graphs.resize import resize

    other = resize(problem, changed)
    if other is not None and other.workload != problem.workload:
        note = ", ".join(f"{new} for {old}" for old, new in changed.items())
        yield case(other, "shifted", seed, note=note, gate=gate)


def _sizes(problem: Problem) -> list[int]:
    return sorted({n for spec in problem.graph.inputs for n in spec.shape if n > 1}, reverse=True)


def _changes(sizes: list[int]) -> Iterator[dict[int, int]]:
    """One size at a time (one less, one more, a small prime, one), then all of them small and odd."""
    for n in sizes:
        yield from ({n: m} for m in dict.fromkeys((n + 1, n - 1, 31, 1)) if m != n and m >= 1)
    primes = (13, 7, 5, 3, 11, 17, 19, 23)
    yield dict(zip(sizes, primes, strict=False))
