"""Compare a candidate's output with float64 and with eager: the only place that says right or wrong.

NaN and infinity are compared first and as classes, and every test is "not (error <= bound)": a NaN is never a wildcard.
What is expected, bounds included, is ready before the candidate runs, so comparing a further config is cheap.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from torch_forge.records.outcomes import CaseResult, ErrorStats, Mismatch
from torch_forge.records.problem import Policy
from torch_forge.records.tensors import DTYPES
from torch_forge.validation.tolerance import RMS_FACTOR, Rule, allowed_error, rms_floor

_CHUNK = {"cpu": 1 << 17, "cuda": 1 << 24}
"""Elements compared at once: float64 temporaries that stay in a CPU's cache, or that keep a GPU busy."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class Expected:
    """What one output of one case must be. Tensors are contiguous and of the output's shape."""

    rule: Rule
    reference: torch.Tensor
    """float64, or the integer type itself."""
    eager: torch.Tensor
    allowed: torch.Tensor | None
    """Largest error of each element; None for integers and booleans."""
    floor: float
    """RMS error granted whatever eager's is."""


def expect(
    reference: torch.Tensor, eager: torch.Tensor, sensitivity: torch.Tensor, rule: Rule, luckless: torch.Tensor | None = None
) -> Expected:
    """Bounds for one output; ``sensitivity`` and ``luckless`` as in ``tolerance.allowed_error``."""
    eager = eager.contiguous()
    if DTYPES[rule.dtype].kind != "float":
        return Expected(rule, reference.to(eager.dtype).contiguous(), eager, None, 0.0)
    reference = reference.double().contiguous()
    scale = max(_finite_rms(reference), _finite_rms(sensitivity))
    floor = rms_floor(scale, rule) + (0.0 if luckless is None else _finite_rms(luckless - reference))
    return Expected(rule, reference, eager, allowed_error(reference, eager, sensitivity, rule, luckless), floor)


def compare(
    actual: torch.Tensor, expected: Expected, *, case: str, output: int, all_of_it: bool = True
) -> CaseResult | Mismatch:
    """Whether one output is right.

    actual: the output's shape and element type, any layout. all_of_it: False stops at the first chunk that is wrong.
    """
    actual = actual.contiguous()
    if expected.rule.policy is Policy.BITWISE:
        return _compare_bits(actual, expected, case, output)
    if expected.allowed is None:
        return _compare_exact(actual, expected, case, output)
    return _compare_floats(actual, expected, case, output, all_of_it)


@dataclass(slots=True)
class _Tally:
    """Errors of one side, gathered chunk by chunk."""

    squares: float = 0.0
    worst: float = 0.0
    worst_at: int = 0

    def add(self, error: torch.Tensor, start: int) -> None:
        if error.numel() == 0:
            return
        self.squares += float(error.square().sum())
        top, at = error.max(0)
        if float(top) > self.worst:
            self.worst, self.worst_at = float(top), start + int(at)

    def stats(self, count: int, shape: torch.Size) -> ErrorStats:
        return ErrorStats(math.sqrt(self.squares / max(count, 1)), self.worst, unravel(self.worst_at, shape))


def _compare_floats(
    actual: torch.Tensor, expected: Expected, case: str, output: int, all_of_it: bool
) -> CaseResult | Mismatch:
    assert expected.allowed is not None
    unit = DTYPES[expected.rule.dtype].unit_roundoff
    candidate, eager = _Tally(), _Tally()
    count = bad_count = 0
    first: tuple[int, str] | None = None
    for start, (c, r, e, allowed) in _chunks(actual, expected.reference, expected.eager, expected.allowed):
        c64, e64 = c.double(), e.double()
        c_class, e_class, r_class = _classes(c64), _classes(e64), _classes(r.to(c.dtype).double())
        wrong_class = (c_class != r_class) & (c_class != e_class)
        finite = (c_class == 0) & (r_class == 0) & (e_class == 0)
        error = (c64 - r).abs_()
        near_eager = (c64 - e64).abs_() <= 2 * unit * e64.abs()
        bound = torch.where(r_class == 0, allowed, 64 * unit * e64.abs())
        target = torch.where(r_class == 0, error, (c64 - e64).abs_())
        beyond = (c_class == 0) & ~((target <= bound) | near_eager)
        # A zero that is exact in eager has eager's sign; what was added up may cancel to either.
        zeros = (c64 == 0) & (e64 == 0) & (r == 0) & (torch.signbit(r) == torch.signbit(e64))
        wrong_sign = (
            zeros & (torch.signbit(c64) != torch.signbit(e64)) if expected.rule.terms == 1 else torch.zeros_like(zeros)
        )
        bad = wrong_class | beyond | wrong_sign
        number = int(bad.sum())
        if number and first is None:
            at = int(bad.to(torch.uint8).argmax())
            why = _why(bool(wrong_class[at]), bool(wrong_sign[at]), target[at], bound[at])
            first = (start + at, why)
        bad_count += number
        if number and not all_of_it:
            break
        count += int(finite.sum())
        candidate.add(error.masked_fill_(~finite, 0.0), start)
        eager.add((e64 - r).abs_().masked_fill_(~finite, 0.0), start)
    of_candidate, of_eager = candidate.stats(count, actual.shape), eager.stats(count, actual.shape)
    if first is None:
        limit = RMS_FACTOR[expected.rule.dtype] * of_eager.rms + expected.floor
        if of_candidate.rms <= limit:
            return CaseResult(case, output, of_candidate, of_eager)
        why = f"RMS error {of_candidate.rms:.3g} against {of_eager.rms:.3g} of eager; at most {limit:.3g}"
        first = (candidate.worst_at, why)
    return _mismatch(actual, expected, case, output, first, bad_count)


def _why(wrong_class: bool, wrong_sign: bool, error: torch.Tensor, bound: torch.Tensor) -> str:
    if wrong_class:
        return "not finite where it must be, or the reverse"
    if wrong_sign:
        return "a zero of the wrong sign"
    return f"error {float(error):.3g}, at most {float(bound):.3g}"


def _classes(x: torch.Tensor) -> torch.Tensor:
    """0 finite, 1 NaN, 2 plus infinity, 3 minus infinity."""
    return torch.isnan(x).to(torch.int8) + 2 * (x == math.inf).to(torch.int8) + 3 * (x == -math.inf).to(torch.int8)


def _compare_exact(actual: torch.Tensor, expected: Expected, case: str, output: int) -> CaseResult | Mismatch:
    """Integers and booleans: eager's value or the exact one.

    Where eager itself misses the exact value (a rounding decision at a tie), about as many elements may differ by one.
    """
    bits = _as_int(actual), _as_int(expected.reference), _as_int(expected.eager)
    eager_missed = bad_count = 0
    first: int | None = None
    far = False
    for start, (c, r, e) in _chunks(*bits):
        bad = (c != r) & (c != e)
        number = int(bad.sum())
        if number and first is None:
            first = start + int(bad.to(torch.uint8).argmax())
        far = far or bool((bad & ((c - r).abs() > 1)).any())
        bad_count += number
        eager_missed += int((e != r).sum())
    if first is None or (not far and eager_missed and bad_count <= 2 * eager_missed + 2):
        return CaseResult(case, output, _none(actual.shape), _none(actual.shape))
    why = f"not the exact value in {bad_count} elements (eager misses {eager_missed})"
    return _mismatch(actual, expected, case, output, (first, why), bad_count)


def _compare_bits(actual: torch.Tensor, expected: Expected, case: str, output: int) -> CaseResult | Mismatch:
    """Eager's bits; which NaN it is does not count."""
    size = actual.element_size()
    c, e = actual.view(_BITS[size]), expected.eager.view(_BITS[size])
    bad = (c != e) & ~(torch.isnan(actual) & torch.isnan(expected.eager))
    number = int(bad.sum())
    if number == 0:
        return CaseResult(case, output, _none(actual.shape), _none(actual.shape))
    first = int(bad.reshape(-1).to(torch.uint8).argmax())
    return _mismatch(actual, expected, case, output, (first, "not eager's bits, as the policy demands"), number)


def _as_int(x: torch.Tensor) -> torch.Tensor:
    """int64, booleans by their byte: a byte that is neither 0 nor 1 is no boolean."""
    return (x.view(torch.uint8) if x.dtype == torch.bool else x).long()


def _none(shape: torch.Size) -> ErrorStats:
    return ErrorStats(0.0, 0.0, unravel(0, shape))


def _mismatch(
    actual: torch.Tensor, expected: Expected, case: str, output: int, first: tuple[int, str], bad: int
) -> Mismatch:
    at, why = first
    got, want, eager = (float(t.reshape(-1)[at]) for t in (actual, expected.reference, expected.eager))
    return Mismatch(case, output, unravel(at, actual.shape), got, want, eager, why, max(bad, 1), actual.numel())


def _chunks(*tensors: torch.Tensor) -> Iterator[tuple[int, tuple[torch.Tensor, ...]]]:
    flat = [t.reshape(-1) for t in tensors]
    size = _CHUNK[flat[0].device.type]
    for start in range(0, flat[0].numel(), size):
        yield start, tuple(t[start : start + size] for t in flat)


def unravel(flat: int, shape: torch.Size | tuple[int, ...]) -> tuple[int, ...]:
    """The index of the element at a row-major position."""
    index: list[int] = []
    for n in reversed(shape):
        index.append(flat % n if n else 0)
        flat //= max(n, 1)
    return tuple(reversed(index))


def _finite_rms(x: torch.Tensor) -> float:
    squares, count = 0.0, 0
    for _, (part,) in _chunks(x):
        kept = part[torch.isfinite(part)]
        squares, count = squares + float(kept.square().sum()), count + kept.numel()
    return math.sqrt(squares / count) if count and math.isfinite(squares) else 0.0
