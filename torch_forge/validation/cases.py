"""Which inputs a kernel is judged on: distributions, misaligned pointers, other sizes.

A case is a recipe (seed and distribution), not data; judge and worker draw the same inputs from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch_forge.records.problem import Problem

QUICK = ("normal", "shifted", "special")
SPARE = ("positive", "small_ints", "wide")
"""Tried in turn where the quick ones cannot tell some wrong result from the right one."""
FULL = ("positive", "wide", "cancelling", "small_ints", "extreme", "constant_rows", "one_hot")


@dataclass(frozen=True, slots=True)
class Case:
    """One set of inputs."""

    name: str
    """``normal``, ``normal, misaligned``, ``normal, 1023 for 1024`` ...; unique in a list of cases."""
    distribution: str
    seed: int
    offset_elements: int
    """How far every input's pointer is from its alignment; above 0, only config 0 has to work."""
    problem: Problem
    """The problem itself or a resized one."""


def case(problem: Problem, distribution: str, seed: int, *, note: str = "", offset_elements: int = 0) -> Case:
    """A case whose inputs depend on the master seed and on its name."""
    name = f"{distribution}, {note}" if note else distribution
    own = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:6], "little")
    return Case(name, distribution, own, offset_elements, problem)


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
    return case(problem, "shifted", seed, note="real size")


def quick_cases(problem: Problem, seed: int) -> list[Case]:
    """One shape with three distributions, and once with pointers aligned to one element only."""
    return [
        *(case(problem, d, seed) for d in QUICK),
        case(problem, "shifted", seed, note="misaligned", offset_elements=1),
    ]


def full_cases(problem: Problem, seed: int, *, sums: bool) -> list[Case]:
    """What the quick cases leave out. ``sums``: the graph adds elements up, so the largest numbers only overflow."""
    kept = [d for d in FULL if not (sums and d == "extreme")]
    return [*(case(problem, d, seed) for d in kept), case(problem, "normal", seed, note="another seed")]


def resized_cases(problem: Problem, seed: int) -> Iterator[Case]:
    """The problem at other sizes, for kernels that serve a class of shapes; the sizes that a graph allows."""
    from torch_forge.graphs.resize import resize

    sizes = sorted({n for spec in problem.graph.inputs for n in spec.shape if n > 1}, reverse=True)
    for changed in _changes(sizes):
        other = resize(problem, changed)
        if other is not None and other.workload != problem.workload:
            note = ", ".join(f"{new} for {old}" for old, new in changed.items())
            yield case(other, "shifted", seed, note=note)


def _changes(sizes: list[int]) -> Iterator[dict[int, int]]:
    """One size at a time (one less, one more, a small prime, one), then all of them small and odd."""
    for n in sizes:
        yield from ({n: m} for m in dict.fromkeys((n + 1, n - 1, 31, 1)) if m != n and m >= 1)
    primes = (13, 7, 5, 3, 11, 17, 19, 23)
    yield dict(zip(sizes, primes, strict=False))
