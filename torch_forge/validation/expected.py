"""What is right for a case, and whether the case could tell.

Float64 result, eager's result and the bounds are computed in the judge's process and never leave it. A case is worth running
only if wrong results that are known to fool validators (zeros, the mean, a copy of an input, the result for other inputs,
eager in a lower precision, eager without one of its inputs) would be rejected on it; ``told_apart`` says which are.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from torch_forge.errors import CaptureError
from torch_forge.graphs.decompose import decompose
from torch_forge.graphs.execute import callable_for, upcast_callable
from torch_forge.records.outcomes import Mismatch
from torch_forge.records.problem import REF, Graph, Policy, Problem
from torch_forge.records.tensors import DTYPES
from torch_forge.validation.cases import Case, case
from torch_forge.validation.compare import Expected, compare, expect
from torch_forge.validation.tolerance import Function, Rule, reduction_length, rounded_otherwise, sensitivity

IMPOSTORS = ("zeros", "the mean", "an input", "an older result", "a lower precision")
"""Results that must be rejected by at least one case; so must those that ignore one of the inputs (``impostors``)."""
_IGNORED = 8
"""Inputs whose influence is looked at."""
_KEPT_BITS = {"float64": 24, "float32": 11, "float16": 8, "bfloat16": 5}
"""Significand bits of the next lower precision: float32, TF32 (and float16), bfloat16, an 8-bit float."""
EQUAL_TERMS = frozenset({"constant_rows", "small_ints", "one_hot"})
"""Distributions of so few values that rounding errors repeat."""
_POLICY_BITS = {Policy.TF32: 8, Policy.BF16: 5}


@dataclass(frozen=True, slots=True)
class Prepared:
    """A case with all that judging needs."""

    case: Case
    outputs: tuple[Expected, ...]
    told_apart: frozenset[str]
    """Those of ``impostors`` that fail on it."""
    eager_s: float
    """Wall time of one eager run, for time limits; no measurement."""
    steady: bool = True
    """Eager gives the same bits every time; only looked at in a ``deep`` case."""

    @property
    def nbytes(self) -> int:
        held = [t for o in self.outputs for t in (o.reference, o.eager, o.allowed) if t is not None]
        return sum(t.numel() * t.element_size() for t in held)


def impostors(graph: Graph) -> tuple[str, ...]:
    """All wrong results that must be told apart for this graph."""
    read = {ref for node in graph.nodes for ref in _refs((node.args, dict(node.kwargs)))} | set(graph.outputs)
    alive = [k for k in range(min(len(graph.inputs), _IGNORED)) if f"{REF}i{k}" in read]
    return (*IMPOSTORS, *(_ignoring(k) for k in alive if len(graph.inputs) > 1))


def _ignoring(position: int) -> str:
    return f"without input {position}"


def prepare(case: Case, device: torch.device, *, deep: bool = False) -> Prepared | None:
    """Run eager and float64 on the case's inputs; None if eager itself refuses them.

    deep: also ask whether each input has an influence, and whether eager is steady.
    Raises CaptureError if the graph cannot be computed in float64.
    """
    graph, policy = case.problem.graph, case.problem.policy
    inputs = [p.tensor for p in case.draw(device)]
    eager = callable_for(graph)
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        begin = time.perf_counter()
        try:
            results = eager(*inputs)
            _wait(device)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, IndexError, ValueError):
            return None
        eager_s = time.perf_counter() - begin
        outputs = _expected_anywhere(case, inputs, results)
        lower = [_rounded(x, _POLICY_BITS.get(policy, _KEPT_BITS.get(_name(x), 0))) for x in inputs]
        others = [p.tensor for p in replace(case, seed=case.seed + 1).draw(device)]
        shams = {"an older result": eager(*others), "a lower precision": eager(*lower)}
        if deep:
            shams |= {_ignoring(k): eager(*_swapped(inputs, others, k)) for k in range(min(len(inputs), _IGNORED))}
        told_apart = frozenset(_rejected(outputs, inputs, shams))
        steady = not deep or all(_same(results, eager(*inputs)) for _ in range(2))
    return Prepared(case, outputs, told_apart, eager_s, steady)


def wrong_with(
    problem: Problem, inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor], seed: int
) -> Mismatch | None:
    """What is wrong with results for inputs that came from elsewhere; None if they are right.

    inputs and results: tensors of the problem's specs, on one device.
    """
    with torch.no_grad(), torch.autocast(inputs[0].device.type, enabled=False):
        outputs = _expected_anywhere(case(problem, "normal", seed), inputs, callable_for(problem.graph)(*inputs))
        for number, (result, expected) in enumerate(zip(results, outputs, strict=True)):
            found = compare(result.to(expected.eager.device), expected, case="a timed call", output=number)
            if isinstance(found, Mismatch):
                return found
    return None


def _refs(value: object) -> Iterator[str]:
    if isinstance(value, str) and value.startswith(REF):
        yield value
    elif isinstance(value, Mapping):
        yield from _refs(tuple(value.values()))
    elif isinstance(value, (tuple, list)):
        for v in value:
            yield from _refs(v)


def _swapped(inputs: Sequence[torch.Tensor], others: Sequence[torch.Tensor], position: int) -> list[torch.Tensor]:
    return [o if k == position else x for k, (x, o) in enumerate(zip(inputs, others, strict=True))]


def _same(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> bool:
    """Equal, NaN included."""
    return all(
        torch.equal(x.nan_to_num(), y.nan_to_num()) if x.is_floating_point() else torch.equal(x, y)
        for x, y in zip(a, b, strict=True)
    )


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _expected_anywhere(case: Case, inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> tuple[Expected, ...]:
    """On the device or, if float64 takes more memory than it has, in the computer's own."""
    try:
        return tuple(_expected(case, inputs, results))
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
    return tuple(_expected(case, [x.cpu() for x in inputs], [r.cpu() for r in results]))


def _expected(case: Case, inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> Iterator[Expected]:
    graph = case.problem.graph
    computed, oracle, reference = _oracle(graph, inputs)
    floats = [s.dtype for s in graph.output_specs if DTYPES[s.dtype].kind == "float"]
    coarsest = max(floats, key=lambda name: DTYPES[name].unit_roundoff, default=None)
    if coarsest is None:
        moves: Sequence[torch.Tensor] = reference
    else:
        moves = sensitivity(oracle, inputs, reference, dtype=coarsest, seed=case.seed)
    terms, correlated = reduction_length(graph), case.distribution in EQUAL_TERMS
    luckless = rounded_otherwise(computed, inputs, seed=case.seed) if correlated else [None] * len(reference)
    for spec, ref, result, move, other in zip(graph.output_specs, reference, results, moves, luckless, strict=True):
        yield expect(ref, result, move, Rule(spec.dtype, case.problem.policy, terms, correlated), other)


def _oracle(graph: Graph, inputs: Sequence[torch.Tensor]) -> tuple[Graph, Function, Sequence[torch.Tensor]]:
    """The graph that is computed in float64, as a function, and its result; decomposed where an operation has no float64
    form.
    """
    function = upcast_callable(graph)
    try:
        return graph, function, function(*inputs)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as reason:
        try:
            graph = decompose(graph)
            function = upcast_callable(graph)
            return graph, function, function(*inputs)
        except RuntimeError:
            raise CaptureError(f"the graph cannot be computed in float64: {reason}") from reason


def _rejected(
    outputs: Sequence[Expected], inputs: Sequence[torch.Tensor], computed: Mapping[str, Sequence[torch.Tensor]]
) -> Iterator[str]:
    shams = {
        "zeros": [torch.zeros_like(o.eager) for o in outputs],
        "the mean": [_mean(o.eager) for o in outputs],
        "an input": [_copied(inputs, o.eager) for o in outputs],
        **computed,
    }
    for name, sham in shams.items():
        results = (
            compare(s.to(o.eager.device), o, case="", output=k, all_of_it=False)
            for k, (s, o) in enumerate(zip(sham, outputs, strict=True))
        )
        if any(isinstance(r, Mismatch) for r in results):
            yield name


def _mean(x: torch.Tensor) -> torch.Tensor:
    """Its shape, every element the mean of the finite ones; zero for a single element, which is its own mean."""
    wide = x.double() if x.numel() > 1 else x.new_zeros(x.shape, dtype=torch.float64)
    kept = wide[torch.isfinite(wide)]
    return torch.full_like(x, float(kept.mean()) if kept.numel() else 0.0)


def _copied(inputs: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """The first input of the same shape as an output; zeros if there is none."""
    match = next((x for x in inputs if x.shape == like.shape), None)
    return torch.zeros_like(like) if match is None else match.to(like.dtype)


def _rounded(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Rounded to so many significand bits (Veltkamp); not finite elements and other types as they are."""
    if not x.is_floating_point() or not bits:
        return x
    wide = x.float() if x.element_size() == 2 else x
    split = wide * (2.0 ** ((53 if x.dtype == torch.float64 else 24) - bits) + 1)
    rounded = torch.where(torch.isfinite(split), split - (split - wide), wide)
    return rounded.to(x.dtype)


def _name(x: torch.Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")
