"""Right results pass whatever their order of summation; wrong ones fail, however small they are."""

from __future__ import annotations

import math

import pytest
import torch

from tests.support.kernels import f32, problem
from tests.support.threads import one_thread  # noqa: F401 (a fixture)
from torch_forge.graphs.inputs import draw_inputs
from torch_forge.records.outcomes import CaseResult, Mismatch
from torch_forge.records.problem import Policy, Problem
from torch_forge.records.tensors import contiguous
from torch_forge.validation.cases import FULL, QUICK, case
from torch_forge.validation.compare import compare, unravel
from torch_forge.validation.expected import Prepared, prepare
from torch_forge.validation.tolerance import envelope, reduction_length

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
F = torch.nn.functional


def prepared(of: Problem, distribution: str = "normal") -> tuple[Prepared, list[torch.Tensor]]:
    recipe = case(of, distribution, 7)
    ready = prepare(recipe, CPU)
    assert ready is not None
    return ready, [p.tensor for p in draw_inputs(of.graph, seed=recipe.seed, distribution=distribution, device=CPU)]


def verdict(of: Problem, result_of, distribution: str = "normal") -> CaseResult | Mismatch:
    ready, inputs = prepared(of, distribution)
    return compare(result_of(*inputs), ready.outputs[0], case=distribution, output=0)


def sequential_sum(x: torch.Tensor) -> torch.Tensor:
    """One running sum in the type of ``x`` (float32 for the halves)."""
    total = torch.zeros(x.shape[:-1])
    for column in x.float().unbind(-1):
        total = total + column
    return total.to(x.dtype)


def reversed_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    wide = x.float().flip(-1)
    lanes = wide.square().reshape(*wide.shape[:-1], -1, 8).sum(-2).sum(-1, keepdim=True)
    return ((x.float() * torch.rsqrt(lanes / x.shape[-1] + 1e-5)).to(x.dtype) * w).to(x.dtype)


def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * w


def split_matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    parts = [p.float() @ q.float() for p, q in zip(a.split(24, 1), b.split(24, 0), strict=True)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total.to(a.dtype)


def two_pass_variance(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (sequential_sum((wide - wide.mean(-1, keepdim=True)).square()) / (x.shape[-1] - 1)).to(x.dtype)


def online_softmax(x: torch.Tensor) -> torch.Tensor:
    top, total = torch.full(x.shape[:-1], -math.inf), torch.zeros(x.shape[:-1])
    for column in x.float().unbind(-1):
        higher = torch.maximum(top, column)
        total = total * torch.exp(top - higher) + torch.exp(column - higher)
        top = higher
    return (torch.exp(x.float() - top[..., None]) / total[..., None]).to(x.dtype)


HONEST = {
    "sum, sequential": (lambda x: x.sum(-1), sequential_sum, [(17, 1031)]),
    "mean of everything, sequential": (lambda x: x.mean(), lambda x: sequential_sum(x.reshape(-1)) / x.numel(), [(33, 65)]),
    "rms norm, other lanes": (rms_norm, reversed_norm, [(64, 512), (512,)]),
    "matmul, split k": (torch.mm, split_matmul, [(32, 240), (240, 48)]),
    "softmax, online": (lambda x: torch.softmax(x, -1), online_softmax, [(24, 300)]),
    "gelu, other formula": (F.gelu, lambda x: (x.float() * torch.special.ndtr(x.float())).to(x.dtype), [(41, 77)]),
    "silu, in double": (F.silu, lambda x: F.silu(x.double()).to(x.dtype), [(1003,)]),
    "product, other order": (
        lambda x, y: x * y * x,
        lambda x, y: (x.float() * x.float() * y.float()).to(x.dtype),
        [(999,), (999,)],
    ),
    "variance, two passes": (lambda x: x.var(-1), two_pass_variance, [(9, 512)]),
}


@pytest.mark.parametrize("name", HONEST)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_another_order_of_the_same_arithmetic_is_right(name: str, dtype: str):
    fn, ours, shapes = HONEST[name]
    of = problem(fn, *(contiguous(s, dtype) for s in shapes))
    for distribution in ("normal", "shifted", "cancelling", "constant_rows", "small_ints"):
        result = verdict(of, ours, distribution)
        assert isinstance(result, CaseResult), f"{distribution}: {result}"


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", HONEST)
def test_eager_itself_is_right_on_every_distribution(name: str, dtype: str):
    fn, _, shapes = HONEST[name]
    of = problem(fn, *(contiguous(s, dtype) for s in shapes))
    for distribution in (*QUICK, *FULL):
        result = verdict(of, fn, distribution)
        assert isinstance(result, CaseResult), f"{distribution}: {result}"


def bf16(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().float()


def nan_eating_relu(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x, torch.zeros(()))


def without_last(x: torch.Tensor) -> torch.Tensor:
    out = torch.sigmoid(x)
    out[-1] = 0.0
    return out


def naive_softmax(x: torch.Tensor) -> torch.Tensor:
    powers = torch.exp(x * 100)
    return powers / powers.sum(-1, keepdim=True)


def norm_without_epsilon(x: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / centred.square().mean(-1, keepdim=True).sqrt()


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def zero(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(())


WRONG = {
    "zeros for a softmax": (softmax, torch.zeros_like, [(4, 10_000)], "normal"),
    "the mean for a softmax": (softmax, lambda x: torch.full_like(x, 1e-4), [(4, 10_000)], "normal"),
    "zero for a mean": (torch.mean, zero, [(1 << 16,)], "shifted"),
    "zero for a mean of N(0, 1)": (torch.mean, zero, [(1 << 16,)], "normal"),
    "operands in bfloat16": (torch.mm, lambda a, b: bf16(a) @ bf16(b), [(64, 1024), (1024, 64)], "normal"),
    "an operand in TF32": (torch.mm, lambda a, b: a.half().float() @ b, [(64, 4096), (4096, 64)], "normal"),
    "a bfloat16 relu": (lambda x: F.relu(x) * 1.5, lambda x: bf16(F.relu(x) * 1.5), [(512,)], "normal"),
    "a maximum that eats NaN": (F.relu, nan_eating_relu, [(64, 33)], "special"),
    "an unwritten tail": (torch.sigmoid, without_last, [(1003,)], "normal"),
    "small elements lost": (lambda x: x * 3, lambda x: torch.where(x.abs() < 1e-3, 0.0, x * 3), [(4096,)], "wide"),
    "no maximum in softmax": (lambda x: softmax(x * 100), naive_softmax, [(8, 64)], "shifted"),
    "affine ignored": (
        lambda x, w: F.layer_norm(x, (64,), w),
        lambda x, w: F.layer_norm(x, (64,)),
        [(16, 64), (64,)],
        "normal",
    ),
    "no epsilon": (lambda x: F.layer_norm(x, (64,)), norm_without_epsilon, [(16, 64)], "constant_rows"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_result_is_a_mismatch(name: str):
    fn, ours, shapes, distribution = WRONG[name]
    assert isinstance(verdict(problem(fn, *(f32(*s) for s in shapes)), ours, distribution), Mismatch)


def test_eager_is_not_the_only_yardstick_where_it_rounds_every_element_alike():
    """Zeros in, so no relative change of the inputs moves anything; eager cancels its own rounding and is exact."""

    def there_and_back(x: torch.Tensor) -> torch.Tensor:
        return (x + 0.1) - 0.1

    def rounded_once(x: torch.Tensor) -> torch.Tensor:
        return ((x + 0.1).double() - 0.1).float()

    of = problem(there_and_back, f32(64, 512))
    assert isinstance(verdict(of, rounded_once, "one_hot"), CaseResult)
    assert isinstance(verdict(of, lambda x: rounded_once(x) + 1e-7, "one_hot"), Mismatch)


def test_nan_is_no_wildcard_in_either_direction():
    of = problem(torch.log, f32(64))
    ready, (x,) = prepared(of)
    assert torch.log(x).isnan().any()
    zeros_for_nan = torch.log(x).nan_to_num(0.0)
    nan_for_numbers = torch.full_like(x, math.nan)
    for wrong in (zeros_for_nan, nan_for_numbers):
        assert isinstance(compare(wrong, ready.outputs[0], case="", output=0), Mismatch)


def test_the_first_wrong_element_is_the_evidence():
    of = problem(torch.neg, f32(7, 9))
    ready, (x,) = prepared(of)
    wrong = -x
    wrong[3, 4] += 1
    wrong[5, 0] += 1
    found = compare(wrong, ready.outputs[0], case="normal", output=0)
    assert isinstance(found, Mismatch)
    assert (found.index, found.bad_elements, found.total_elements) == ((3, 4), 2, 63)
    assert found.expected == pytest.approx(float(-x[3, 4]))
    assert found.got == pytest.approx(float(wrong[3, 4]))


def test_integers_are_exact_and_bytes_that_are_no_booleans_are_wrong():
    counts = problem(lambda x: (x > 0).sum(-1), f32(16, 64))
    assert isinstance(verdict(counts, lambda x: (x > 0).sum(-1)), CaseResult)
    assert isinstance(verdict(counts, lambda x: (x > 0).sum(-1) + 1), Mismatch)
    truth = problem(lambda x: x > 0, f32(64))
    assert isinstance(verdict(truth, lambda x: x > 0), CaseResult)
    assert isinstance(verdict(truth, lambda x: ((x > 0).to(torch.uint8) * 2).view(torch.bool)), Mismatch)


def test_the_bitwise_policy_wants_eagers_bits():
    of = problem(lambda x: torch.softmax(x, -1), f32(8, 64), policy=Policy.BITWISE)
    assert isinstance(verdict(of, lambda x: torch.softmax(x, -1)), CaseResult)
    assert isinstance(verdict(of, lambda x: torch.softmax(x.double(), -1).float()), Mismatch)


def test_the_tf32_policy_allows_what_the_default_refuses():
    shapes = f32(64, 1024), f32(1024, 64)

    def rounded(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a.half().float() @ b.half().float()

    assert isinstance(verdict(problem(torch.mm, *shapes, policy=Policy.TF32), rounded), CaseResult)
    assert isinstance(verdict(problem(torch.mm, *shapes), rounded), Mismatch)


@pytest.mark.parametrize(
    ("fn", "shapes", "expected"),
    [
        (torch.mm, [(4, 100), (100, 5)], 100),
        (lambda x: x.sum(), [(10, 20)], 200),
        (lambda x: torch.softmax(x, 0), [(30, 4)], 30),
        (lambda x: x[:1] + 1, [(50, 4)], 1),
        (F.relu, [(50, 4)], 1),
        (F.conv2d, [(1, 3, 9, 9), (8, 3, 5, 5)], 75),
    ],
    ids=["mm", "sum", "softmax", "slice", "relu", "convolution"],
)
def test_reduction_length(fn, shapes, expected: int):
    assert reduction_length(problem(fn, *(f32(*s) for s in shapes)).graph) == expected


def test_the_envelope_knows_rows_and_magnitudes():
    reference = torch.ones(4, 64, dtype=torch.float64)
    reference[:, 32:] = 2.0**20
    errors = torch.full_like(reference, 1e-9)
    errors[0, 40] = 1.0
    around = envelope(errors, reference)
    assert float(around[0, 50]) == 1.0  # the same row, the same magnitude
    assert float(around[0, 3]) == 1e-9  # the same row, much smaller
    assert float(around[2, 50]) == 1e-9  # another row


def test_unravel():
    assert [unravel(k, (2, 3)) for k in (0, 4, 5)] == [(0, 0), (1, 1), (1, 2)]
