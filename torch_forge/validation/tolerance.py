"""How wrong an element may be, decided before any candidate runs.

A fixed tolerance accepts zeros for a softmax and rejects an honest sum of a million terms. Here the yardstick is made of
two things that can be measured: how wrong eager is on the same inputs, and how much the float64 result moves
when the inputs move by a relative unit, which is what a backward-stable algorithm may lose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from torch_forge.graphs.execute import upcast_callable
from torch_forge.records.problem import REF, Graph, Node, Policy
from torch_forge.records.tensors import DTYPES, TensorSpec

EAGER_FACTOR = 4.0
"""An element may be wrong by this many times the largest error of eager around it."""
RMS_FACTOR = {"float64": 2.0, "float32": 2.0, "float16": 3.0, "bfloat16": 3.0}
"""The tensor's RMS error may be this many times eager's."""
_GROUP = 16
"""The fewest elements whose largest error says something of eager's error in general."""
_POPULATION = 64
_CHUNK = 1 << 20
_EXPONENTS = 2300
_POLICY_ROUNDOFF = {Policy.TF32: 2.0**-11, Policy.BF16: 2.0**-8}

Function = Callable[..., tuple[torch.Tensor, ...]]


@dataclass(frozen=True, slots=True)
class Rule:
    """What the bounds of one output depend on besides the data."""

    dtype: str
    policy: Policy
    terms: int
    """Of the longest sum (``reduction_length``)."""
    correlated: bool = False
    """Terms are equal, so that their rounding errors all have one sign and add up instead of averaging out."""

    @property
    def stored(self) -> float:
        """Unit roundoff of values in memory, and of whatever the policy lets operands be rounded to."""
        return max(DTYPES[self.dtype].unit_roundoff, _POLICY_ROUNDOFF.get(self.policy, 0.0))

    @property
    def growth(self) -> float:
        """How far the error of a sequential sum may exceed that of one addition."""
        return float(self.terms if self.correlated else self.terms**0.5)

    @property
    def accumulated(self) -> float:
        """Unit roundoff of sums: float32 for the 16-bit floats, as in eager."""
        return min(DTYPES[self.dtype].unit_roundoff, 2.0**-24)


def allowed_error(
    reference: torch.Tensor, eager: torch.Tensor, sensitivity: torch.Tensor, rule: Rule, luckless: torch.Tensor | None = None
) -> torch.Tensor:
    """The largest absolute error of each element, the shape of ``reference``; float32 unless the output is float64.

    reference, sensitivity: float64. eager: any float type. luckless: as eager, float64, where eager alone tells too
    little (``rounded_otherwise``). Where the reference is not finite the bound means nothing.
    """
    error = (eager.double() - reference).abs_().nan_to_num_(0.0, 0.0, 0.0)
    if luckless is not None:
        error = torch.maximum(error, (luckless - reference).abs_().nan_to_num_(0.0, 0.0, 0.0))
    error.mul_(EAGER_FACTOR)
    # The sum of the magnitudes of the terms is at most sqrt(terms) * sensitivity (Cauchy-Schwarz) and at least the result.
    of_sums = (4 + rule.growth) * rule.accumulated
    backward = sensitivity * (4 * rule.stored + rule.terms**0.5 * of_sums)
    own = torch.maximum(error, backward)
    around = envelope(own, reference)
    rounding = reference.abs().mul_(rule.stored + of_sums).nan_to_num_(0.0, 0.0, 0.0)
    tiny = float(torch.finfo(getattr(torch, rule.dtype)).smallest_normal)
    denormal = tiny * 2 * DTYPES[rule.dtype].unit_roundoff
    if rule.terms == 1:
        # Where eager keeps a denormal, larger elements' errors do not excuse taking it for zero.
        kept = (reference != 0) & (reference.abs() < tiny) & (error <= EAGER_FACTOR * denormal)
        around = torch.where(kept, torch.minimum(around, own + 4 * denormal), around)
    allowed = around.add_(rounding).add_(denormal)
    return allowed if rule.dtype == "float64" else allowed.mul_(1 + 2.0**-20).float()


def rms_floor(scale: float, rule: Rule) -> float:
    """RMS error granted whatever eager's is: one rounding of the result and a sequential sum of the terms.

    ``scale`` is the larger of the RMS of the result and of the sensitivity.
    """
    return float((rule.stored + (2 + 0.5 * rule.growth) * rule.accumulated) * scale)


def sensitivity(
    function: Function, inputs: Sequence[torch.Tensor], reference: Sequence[torch.Tensor], *, dtype: str, seed: int
) -> list[torch.Tensor]:
    """Per output and element: change of the float64 result per relative change of the inputs (root mean square).

    Float inputs get random relative changes of plus or minus one unit roundoff of ``dtype``.
    """
    step = max(DTYPES[dtype].unit_roundoff, 2.0**-24)
    smallest = min((r.numel() for r in reference), default=0)
    draws = 1 if smallest >= 4096 else 2 if smallest >= _POPULATION else 6
    squares = [torch.zeros(r.shape, dtype=torch.float64, device=r.device) for r in reference]
    for draw in range(draws):
        moved = function(*(_nudged(x, step, seed * 64 + draw * 16 + k) for k, x in enumerate(inputs)))
        for total, after, before in zip(squares, moved, reference, strict=True):
            total.add_((after.double() - before.double()).nan_to_num_(0.0, 0.0, 0.0).square_())
    return [total.div_(draws).sqrt_().div_(step) for total in squares]


def _nudged(x: torch.Tensor, step: float, seed: int) -> torch.Tensor:
    if not x.is_floating_point() or x.numel() == 0:
        return x
    generator = torch.Generator(device=x.device)
    generator.manual_seed(seed)
    signs = torch.randint(0, 2, x.shape, generator=generator, device=x.device, dtype=torch.int8).mul_(2).sub_(1)
    return x.to(torch.float64, copy=True).mul_(1.0 + step * signs)


def rounded_otherwise(graph: Graph, inputs: Sequence[torch.Tensor], *, seed: int) -> tuple[torch.Tensor, ...]:
    """The float64 results with each result of an operation moved by up to one unit roundoff of the type eager has it in.

    Where inputs have few distinct values, eager rounds every element the same way, and may be lucky everywhere at once.
    """
    generator = torch.Generator(device=inputs[0].device if inputs else "cpu")
    generator.manual_seed(seed)

    def moved(x: torch.Tensor, dtype: str) -> torch.Tensor:
        noise = torch.rand(x.shape, generator=generator, device=x.device, dtype=torch.float64).mul_(2).sub_(1)
        return noise.mul_(DTYPES[dtype].unit_roundoff).add_(1.0).mul_(x)

    return upcast_callable(graph, after=moved)(*inputs)


def envelope(values: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """The largest value among comparable elements: of the same row, and of at most the same magnitude in ``reference``.

    A row alone would let the largest element of a row with a wide range excuse the smallest; magnitude alone would let one
    badly conditioned row excuse all others. Each group has enough members not to be small by luck.
    """
    rows = _rows(values)
    by_row = rows.amax(1, keepdim=True).expand(rows.shape).reshape(values.shape) if rows.numel() else values
    return torch.minimum(by_row, _by_magnitude(values, reference))


def _rows(values: torch.Tensor) -> torch.Tensor:
    length = 1
    for n in reversed(values.shape):
        length *= n
        if length >= _GROUP:
            break
    return values.reshape(-1, max(length, 1)) if values.numel() else values.reshape(0, 1)


def _by_magnitude(values: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    flat, ref = values.reshape(-1), reference.reshape(-1)
    top = torch.zeros(_EXPONENTS, dtype=torch.float64, device=flat.device)
    count = torch.zeros(_EXPONENTS, dtype=torch.int64, device=flat.device)
    for start in range(0, flat.numel(), _CHUNK):
        part = slice(start, start + _CHUNK)
        bins = _exponent(ref[part])
        top.scatter_reduce_(0, bins, flat[part], "amax")
        count += torch.bincount(bins, minlength=_EXPONENTS)
    table = _climb(top.cpu(), count.cpu()).to(flat.device)
    result = torch.empty_like(flat)
    for start in range(0, flat.numel(), _CHUNK):
        part = slice(start, start + _CHUNK)
        result[part] = table[_exponent(ref[part])]
    return result.reshape(values.shape)


def _exponent(reference: torch.Tensor) -> torch.Tensor:
    """The binary exponent, moved to start at 1; 0 for zero."""
    exponent = torch.frexp(reference).exponent.long().add_(_EXPONENTS // 2)
    return torch.where(reference == 0, 0, exponent.clamp_(1, _EXPONENTS - 1))


def _climb(top: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """For each exponent the largest value up to it and up to as many further as make the population large enough."""
    running = torch.cummax(top, 0).values
    below = torch.cumsum(count, 0) - count
    reach = torch.searchsorted(torch.cumsum(count, 0), below + _POPULATION).clamp_(max=len(top) - 1)
    return running[torch.maximum(reach, torch.arange(len(top)))]


def reduction_length(graph: Graph) -> int:
    """The most terms that one operation of the graph sums up (or otherwise folds) into an element."""
    return max((_terms(graph, node) for node in graph.nodes), default=1)


_PRODUCTS = frozenset({"mm", "bmm", "matmul", "linear", "mv", "dot", "_int_mm"})
_ALONG_DIM = frozenset({"_softmax", "_log_softmax", "softmax", "log_softmax", "cumsum", "cumprod", "logcumsumexp"})


def _terms(graph: Graph, node: Node) -> int:
    name = node.op.split(".")[1]
    specs = [graph.spec(a) for a in node.args if isinstance(a, str) and a.startswith(REF)]
    if not specs:
        return 1
    first = specs[0]
    if name in _PRODUCTS:
        return first.shape[-1] if first.shape else 1
    if name in ("addmm", "baddbmm", "addmv"):
        return specs[1].shape[-1]
    if "convolution" in name and len(specs) > 1:
        return max(1, specs[1].numel // max(1, specs[1].shape[0]))
    if name in _ALONG_DIM or name.endswith("_backward_data"):
        return first.shape[_dim(node)] if first.shape else 1
    largest, smallest = max(s.numel for s in specs), min((s.numel for s in node.outputs), default=1)
    return max(1, largest // max(1, smallest)) if _folds(name, first, node) else 1


def _dim(node: Node) -> int:
    return next((a for a in node.args[1:] if type(a) is int), -1)


def _folds(name: str, first: TensorSpec, node: Node) -> bool:
    """Selecting and slicing also shrink a tensor, but add nothing up."""
    moves = ("slice", "select", "split", "narrow", "index", "gather", "embedding", "unbind", "chunk", "unfold")
    return not any(name.startswith(m) for m in moves) and bool(node.outputs) and first.numel > 0
