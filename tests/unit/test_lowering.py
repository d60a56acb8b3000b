"""Lowering against eager: the program of each function, interpreted, gives eager's result bit for bit or nearly so."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.support import interpret
from torch_forge.graphs.capture import problem_of
from torch_forge.graphs.lower import lower
from torch_forge.records.program import Lowered, NotLowered, Reduce


def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = x.to(torch.float32)
    return w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def rotate(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


def rope(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + rotate(q) * sin, k * cos + rotate(k) * sin


def int8_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x.abs().amax(-1, keepdim=True).float() / 127.0
    return torch.clamp(torch.round(x.float() / scale), -128, 127).to(torch.int8), scale


def embed(ids: torch.Tensor, words: torch.Tensor, places: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(F.embedding(ids, words) + places[torch.arange(ids.shape[1])], (16,), w, b)


def r(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


BF16 = torch.bfloat16
CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[torch.Tensor, ...]], str]] = {
    "softmax": (lambda x: F.softmax(x, -1), lambda: (r(5, 37),), "row"),
    "softmax bf16": (lambda x: F.softmax(x, -1), lambda: (r(5, 37, dtype=BF16),), "row"),
    "softmax middle dim": (lambda x: F.softmax(x, 1), lambda: (r(3, 7, 5),), "row"),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (33,), w, b), lambda: (r(4, 2, 33), r(33), r(33)), "row"),
    "layer norm over two dims": (lambda x: F.layer_norm(x, (5, 6)), lambda: (r(4, 5, 6),), "row"),
    "rms norm": (rms_norm, lambda: (r(3, 4, 64, dtype=BF16), r(64, dtype=BF16)), "row"),
    "add rms norm, two outputs": (lambda x, s, w: (rms_norm(x + s, w), x + s), lambda: (r(6, 32), r(6, 32), r(32)), "row"),
    "new gelu": (
        lambda x: 0.5 * x * (1 + torch.tanh(0.79788 * (x + 0.044715 * torch.pow(x, 3.0)))),
        lambda: (r(7, 9),),
        "pointwise",
    ),
    "swiglu": (lambda a, b: F.silu(a) * b, lambda: (r(7, 9, dtype=BF16), r(7, 9, dtype=BF16)), "pointwise"),
    "bias gelu residual": (lambda x, b, s: F.gelu(x + b) + s, lambda: (r(7, 9), r(9), r(7, 9)), "pointwise"),
    "rope": (rope, lambda: (r(2, 4, 6, 8), r(2, 2, 6, 8), r(2, 6, 8), r(2, 6, 8)), "pointwise"),
    "group norm silu": (lambda x, w, b: F.silu(F.group_norm(x, 2, w, b)), lambda: (r(3, 6, 4, 5), r(6), r(6)), "row"),
    "batch norm relu": (
        lambda x, m, v, w, b: F.relu(F.batch_norm(x, m, v, w, b)),
        lambda: (r(3, 6, 4, 5), r(6), r(6).abs(), r(6), r(6)),
        "pointwise",
    ),
    "cumsum": (lambda x: torch.cumsum(x, -1), lambda: (r(4, 19),), "row"),
    "logsumexp": (lambda x: torch.logsumexp(x, -1), lambda: (r(4, 19),), "row"),
    "masked softmax": (
        lambda s, m: F.softmax((s * 0.125 + m).float(), -1).to(s.dtype),
        lambda: (r(2, 3, 4, 9), r(2, 1, 4, 9)),
        "row",
    ),
    "int8 rows": (int8_rows, lambda: (r(5, 24, dtype=BF16),), "row"),
    "normalize": (lambda x: F.normalize(x, dim=-1), lambda: (r(5, 24),), "row"),
    "embedding layer norm": (embed, lambda: (torch.randint(0, 50, (3, 7)), r(50, 16), r(9, 16), r(16), r(16)), "row"),
    "permute": (lambda x: x.permute(0, 3, 1, 2).contiguous(), lambda: (r(2, 3, 4, 5),), "pointwise"),
    "transposed input": (lambda x: x.exp() + 1, lambda: (r(5, 6).t(),), "pointwise"),
    "strided slice": (lambda x: x * 2, lambda: (r(5, 12)[:, ::2],), "pointwise"),
    "expanded input": (lambda x, y: x + y, lambda: (r(1, 6).expand(4, 6), r(4, 6)), "pointwise"),
    "channels last": (lambda x: F.relu(x) * 3, lambda: (r(2, 3, 4, 5).to(memory_format=torch.channels_last),), "pointwise"),
    "view in the middle": (lambda x: (x.view(4, 3, 8) * 2).softmax(-1).view(4, 24) + 1, lambda: (r(4, 24),), "row"),
    "flip": (lambda x: x.flip(-1) + x, lambda: (r(4, 7),), "pointwise"),
    "pad": (lambda x: F.pad(x, (1, 2), value=3.0) * 2, lambda: (r(4, 7),), "pointwise"),
    "three-way cat": (lambda a, b, c: torch.cat((a, b * 2, c), 1) + 1, lambda: (r(2, 3), r(2, 1), r(2, 4)), "pointwise"),
    "where": (lambda x, y: torch.where(x > 0, x, y.exp()), lambda: (r(4, 7), r(4, 7)), "pointwise"),
    "masked fill": (lambda x, m: x.masked_fill(m, -1e9).softmax(-1), lambda: (r(4, 7), r(4, 7) > 0), "row"),
    "integers": (
        lambda x, y: (x // 3 + y % 5) * 2,
        lambda: (torch.randint(0, 99, (4, 7)), torch.randint(0, 99, (7,))),
        "pointwise",
    ),
    "argmax": (lambda x: x.argmax(-1), lambda: (r(4, 17),), "row"),
    "max with indices": (lambda x: tuple(x.max(-1)), lambda: (r(4, 17),), "row"),
    "variance": (lambda x: x.var(-1), lambda: (r(4, 17),), "row"),
    "gather": (lambda x, i: x.gather(1, i) * 2, lambda: (r(4, 17), torch.randint(0, 17, (4, 3))), "pointwise"),
    "negative index": (lambda x, i: x[i] + 1, lambda: (r(9, 5), torch.tensor([0, -1, 3, -9])), "pointwise"),
    "clamp": (lambda x: x.clamp(-0.5, 0.5).pow(2.5), lambda: (r(9, 5).abs(),), "pointwise"),
    "float64": (lambda x: torch.log1p(x.abs()).sum(-1), lambda: (r(9, 5, dtype=torch.float64),), "row"),
    "comparison": (lambda x: (x > 0) & (x < 1), lambda: (r(9, 5),), "pointwise"),
    "mixed types": (lambda x, y: x + y, lambda: (r(9, 5, dtype=BF16), r(9, 5)), "pointwise"),
    "two different spaces": (lambda x, y: (x * 2, y + 1), lambda: (r(9, 5), r(3, 4)), "pointwise"),
    "log softmax": (lambda x: F.log_softmax(x, -1), lambda: (r(5, 37, dtype=BF16),), "row"),
    "softmax backward": (
        lambda g, y: torch.ops.aten._softmax_backward_data(g, y, -1, torch.float32),
        lambda: (r(5, 37), r(5, 37)),
        "row",
    ),
    "gelu backward": (torch.ops.aten.gelu_backward, lambda: (r(5, 37), r(5, 37)), "pointwise"),
    "one column": (lambda x: F.softmax(x, -1) + 1, lambda: (r(5, 1),), "row"),
    "one row": (lambda x: F.softmax(x, -1), lambda: (r(1, 33),), "row"),
    "nan and inf": (
        lambda x: x.amax(-1) + 0,
        lambda: (torch.tensor([[1.0, math.nan, 2], [math.inf, 0, -math.inf]]),),
        "row",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_program_computes_what_eager_computes(name: str) -> None:
    torch.manual_seed(0)
    fn, make, kind = CASES[name]
    inputs = list(make())
    lowered = lower(problem_of(fn, inputs))
    assert isinstance(lowered, Lowered), lowered
    assert lowered.program.kind == kind
    expected = fn(*inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    outputs = [torch.empty_strided(e.shape, e.stride(), dtype=e.dtype) for e in expected]
    for o in outputs:
        o.fill_(7)
    interpret.run(lowered, inputs, outputs)
    for got, want in zip(outputs, expected, strict=True):
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-5 if want.dtype != BF16 else 8e-3, atol=1e-5)


REFUSED: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], str]] = {
    "matrix product": (lambda x: x @ x, (r(4, 4),), "mm.default has no template"),
    "two reductions": (lambda x: x.softmax(-1).sum(), (r(4, 5),), "neither one element per row"),
    "input returned": (lambda x: (x, x + 1), (r(4, 5),), "an output is an input"),
    "empty": (lambda x: x + 1, (r(0, 5),), "empty"),
    "expanded output": (lambda x: (x + 1).expand(4, 5), (r(1, 5),), "overlaps itself"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusal_says_why(name: str) -> None:
    fn, inputs, reason = REFUSED[name]
    lowered = lower(problem_of(fn, list(inputs)))
    assert isinstance(lowered, NotLowered)
    assert reason in " ".join(lowered.reasons)


@pytest.mark.parametrize(
    ("fn", "first", "second"),
    [
        pytest.param(lambda x: F.softmax(x, -1), (r(6, 32),), (r(9, 77),), id="softmax"),
        pytest.param(rms_norm, (r(2, 3, 32), r(32)), (r(5, 48), r(48)), id="rms norm, other rank"),
        pytest.param(lambda x, b: F.gelu(x + b), (r(8, 16), r(16)), (r(3, 5, 24), r(24)), id="bias gelu"),
        pytest.param(rope, (r(2, 4, 6, 8), r(2, 2, 6, 8), r(2, 6, 8), r(2, 6, 8)),
                     (r(3, 6, 5, 8), r(3, 3, 5, 8), r(3, 5, 8), r(3, 5, 8)), id="rope"),
    ],
)  # fmt: skip
def test_one_program_for_all_sizes(fn: Callable[..., Any], first: Any, second: Any) -> None:
    a, b = lower(problem_of(fn, first)), lower(problem_of(fn, second))
    assert isinstance(a, Lowered)
    assert isinstance(b, Lowered)
    assert a.program.digest == b.program.digest
    assert a.values != b.values


def test_contiguous_tensors_of_any_rank_become_one_loop() -> None:
    lowered = lower(problem_of(lambda x: x * 2, [r(2, 3, 4, 5)]))
    assert isinstance(lowered, Lowered)
    assert lowered.values == (120,)


def test_a_value_used_twice_is_reduced_once() -> None:
    lowered = lower(problem_of(lambda x: x / x.sum(-1, keepdim=True) + x.sum(-1, keepdim=True), [r(4, 8)]))
    assert isinstance(lowered, Lowered)
    assert sum(isinstance(s, Reduce) for s in lowered.program.parts[0].body) == 1
