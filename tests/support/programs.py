"""Hand-written programs for tests of the templates: the loop form, example inputs and what they must compute.

``Case.expected`` is plain torch on the case's inputs, in float64 where ``exact`` is false. Builders take sizes, so that
tests can ask for odd, empty and large ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from torch_forge.records.device import DeviceInfo
from torch_forge.records.problem import Graph, Node, Problem
from torch_forge.records.program import (
    CheckedIndex,
    Index,
    IndexValue,
    Load,
    Lowered,
    Op,
    Part,
    Program,
    Reduce,
    Scan,
    Statement,
    Store,
    Tensor,
)  # fmt: skip
from torch_forge.records.tensors import TensorSpec

D0: Index = ("d", 0)
D1: Index = ("d", 1)
D2: Index = ("d", 2)
ROW: Index = ("row",)


def p(k: int) -> Index:
    return ("p", f"p{k}")


def add(*terms: Index) -> Index:
    return ("+", *terms)


def mul(*factors: Index) -> Index:
    return ("*", *factors)


@dataclass(frozen=True)
class Case:
    """One program with inputs and the results it must give."""

    name: str
    lowered: Lowered
    inputs: tuple[torch.Tensor, ...]
    expected: tuple[torch.Tensor, ...]
    """Each with the output's shape; float64 stands for the true value, any other type must match bit for bit."""
    out_dtypes: tuple[torch.dtype, ...]

    @property
    def problem(self) -> Problem:
        """A stand-in with the right input and output specs."""
        outputs = tuple(
            TensorSpec(tuple(t.shape), tuple(torch.empty(t.shape).stride()), dtype_name(d))
            for t, d in zip(self.expected, self.out_dtypes, strict=True)
        )
        inputs = tuple(TensorSpec(tuple(t.shape), tuple(t.stride()), dtype_name(t.dtype)) for t in self.inputs)
        node = Node(f"test.{self.name}", tuple(f"%i{i}" for i in range(len(inputs))), (), outputs)
        return Problem(self.name, Graph(inputs, (node,), tuple(f"%v0.{i}" for i in range(len(outputs)))))


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def cpu_device(units: int = 2, l2_bytes: int = 32 << 20) -> DeviceInfo:
    return DeviceInfo("cpu", 0, "test CPU", "avx2", units, 8 << 30, 32 << 10, l2_bytes, 20.0, 1e11, ("avx2", "fma"))


def cuda_device() -> DeviceInfo:
    return DeviceInfo("cuda", 0, "NVIDIA H200", "sm_90", 132, 141 << 30, 232448, 50 << 20, 4270.0, 6e13, ())


def make_case(
    name: str, kind: str, parts: list[Part], dims: list[int], inputs: list[torch.Tensor], expected: list[torch.Tensor],
    out_dtypes: list[torch.dtype],
) -> Case:  # fmt: skip
    """A case whose tensors are its inputs, then its outputs, and whose parameters are ``p0``, ``p1`` ..."""
    tensors = [Tensor("in", i, dtype_name(t.dtype)) for i, t in enumerate(inputs)]
    tensors += [Tensor("out", i, dtype_name(d)) for i, d in enumerate(out_dtypes)]
    program = Program(kind, tuple(tensors), tuple(f"p{k}" for k in range(len(dims))), tuple(parts))
    return Case(name, Lowered(program, tuple(dims)), tuple(inputs), tuple(expected), tuple(out_dtypes))


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Normal values, the same for the same arguments."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype)


def op(name: str, fn: str, *args: str | float, dtype: str = "float32", compute: str = "float32") -> Op:
    return Op(name, fn, args, dtype, compute)


def rows_of(k: int) -> Index:
    """``d0 * p<k> + row``: rows with a stride."""
    return add(mul(D0, p(k)), ROW)


def _row_part(body: list[Statement]) -> list[Part]:
    return [Part(("p0",), "p1", tuple(body))]


# -- row programs ---------------------------------------------------------------------------------------------------


def softmax(rows: int, n: int, dtype: torch.dtype = torch.float32, stride: int | None = None, scale: float = 1.0) -> Case:
    """Softmax of rows that lie ``stride`` elements apart."""
    stride = n if stride is None else stride
    x = (draw(rows, stride, dtype=dtype) * scale)[:, :n]
    t = dtype_name(dtype)
    compute = "float64" if dtype is torch.float64 else "float32"
    f = {"dtype": compute, "compute": compute}
    body: list[Statement] = [
        Load("v0", 0, rows_of(2)), Reduce("v1", "max", "v0", compute), op("v2", "sub", "v0", "v1", **f),
        op("v3", "exp", "v2", **f),
        Reduce("v4", "sum", "v3", compute), Op("v5", "div", ("v3", "v4"), t, compute), Store(1, rows_of(3), "v5"),
    ]  # fmt: skip
    return make_case("softmax", "row", _row_part(body), [rows, n, stride, n], [x], [torch.softmax(x.double(), -1)], [dtype])


def rms_norm(rows: int, n: int) -> Case:
    """Llama's: ``w * (x.float() * rsqrt(mean(x^2) + eps)).to(bf16)``, every rounding point kept."""
    x, w = draw(rows, n, dtype=torch.bfloat16), draw(n, dtype=torch.bfloat16, seed=1)
    body: list[Statement] = [
        Load("v0", 0, rows_of(2)), op("v1", "cast", "v0"), op("v2", "pow", "v1", 2.0), Reduce("v3", "sum", "v2", "float32"),
        IndexValue("n", p(1)), op("v4", "div", "v3", "n"), op("v5", "add", "v4", 1e-6), op("v6", "rsqrt", "v5"),
        op("v7", "mul", "v1", "v6"), op("v8", "cast", "v7", dtype="bfloat16"), Load("v9", 1, ROW),
        op("v10", "mul", "v9", "v8", dtype="bfloat16"), Store(2, rows_of(3), "v10"),
    ]  # fmt: skip
    h = x.double()
    y = w.double() * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6))
    return make_case("rms_norm", "row", _row_part(body), [rows, n, n, n], [x, w], [y], [torch.bfloat16])


def add_layer_norm(rows: int, n: int, dtype: torch.dtype = torch.float32) -> Case:
    """Residual sum and its layer norm, both stored."""
    x, r, w, b = (
        draw(rows, n, dtype=dtype),
        draw(rows, n, dtype=dtype, seed=1),
        draw(n, dtype=dtype, seed=2),
        draw(n, dtype=dtype, seed=3),
    )
    t = dtype_name(dtype)
    body: list[Statement] = [
        Load("v0", 0, rows_of(2)), Load("v1", 1, rows_of(3)), op("v2", "add", "v0", "v1", dtype=t),
        Store(5, rows_of(5), "v2"),
        Reduce("v3", "sum", "v2", "float32"), IndexValue("v4", p(1)), op("v5", "div", "v3", "v4"),
        op("v6", "sub", "v2", "v5"),
        op("v7", "square", "v6"), Reduce("v8", "sum", "v7", "float32"), op("v9", "div", "v8", "v4"),
        op("v10", "add", "v9", 1e-5),
        op("v11", "rsqrt", "v10"), op("v12", "mul", "v6", "v11"), Load("v13", 2, ROW), Load("v14", 3, ROW),
        op("v15", "mul", "v12", "v13"), op("v16", "add", "v15", "v14", dtype=t), Store(4, rows_of(4), "v16"),
    ]  # fmt: skip
    s = x + r
    y = torch.nn.functional.layer_norm(s.double(), (n,), w.double(), b.double())
    return make_case("add_layer_norm", "row", _row_part(body), [rows, n, n, n, n, n], [x, r, w, b], [y, s], [dtype, dtype])


def group_norm(groups: int, channels: int, hw: int) -> Case:
    """Rows of ``channels * hw``; the weight is indexed by a quotient of the row variable."""
    n = channels * hw
    x, w = draw(groups, n), draw(channels, seed=1)
    body: list[Statement] = [
        Load("v0", 0, rows_of(3)), Reduce("v1", "sum", "v0", "float32"), IndexValue("v2", p(1)), op("v3", "div", "v1", "v2"),
        op("v4", "sub", "v0", "v3"), op("v5", "square", "v4"), Reduce("v6", "sum", "v5", "float32"),
        op("v7", "div", "v6", "v2"),
        op("v8", "add", "v7", 1e-5), op("v9", "rsqrt", "v8"), op("v10", "mul", "v4", "v9"),
        Load("v11", 1, ("//", ROW, p(2))),
        op("v12", "mul", "v10", "v11"), Store(2, rows_of(3), "v12"),
    ]  # fmt: skip
    h = x.double()
    h = (h - h.mean(-1, keepdim=True)) * torch.rsqrt(h.var(-1, keepdim=True, unbiased=False) + 1e-5)
    y = h * w.double().repeat_interleave(hw)
    return make_case("group_norm", "row", _row_part(body), [groups, n, hw, n], [x, w], [y], [torch.float32])


def int8_quant(rows: int, n: int) -> Case:
    """Row-wise int8: scale = max |x| / 127, a second result with one element a row."""
    x = draw(rows, n, dtype=torch.bfloat16)
    body: list[Statement] = [
        Load("v0", 0, rows_of(2)), op("v1", "abs", "v0", dtype="bfloat16"), Reduce("v2", "max", "v1", "float32"),
        op("v3", "div", "v2", 127.0), op("v4", "cast", "v0"), op("v5", "div", "v4", "v3"), op("v6", "round", "v5"),
        op("v7", "max", "v6", -128), op("v8", "min", "v7", 127), op("v9", "cast", "v8", dtype="int8"),
        Store(1, rows_of(2), "v9"), Store(2, D0, "v3"),
    ]  # fmt: skip
    s = x.abs().amax(-1, keepdim=True).float() / 127.0
    q = torch.clamp(torch.round(x.float() / s), -128, 127).to(torch.int8)
    return make_case("int8_quant", "row", _row_part(body), [rows, n, n], [x], [q, s], [torch.int8, torch.float32])


def argmax(rows: int, n: int, fn: str = "argmax") -> Case:
    """First index of the largest; ties and NaN included."""
    x = draw(rows, n).round()
    if n > 5 and rows > 1:
        x[1, n // 2] = float("nan")
        x[1, n - 1] = float("nan")
    body: list[Statement] = [Load("v0", 0, rows_of(2)), Reduce("v1", fn, "v0", "float32"), Store(1, D0, "v1")]
    return make_case(fn, "row", _row_part(body), [rows, n, n], [x], [getattr(torch, fn)(x, -1)], [torch.int64])


def cumsum(rows: int, n: int, dtype: torch.dtype = torch.float32) -> Case:
    """Prefix sums."""
    x = draw(rows, n) if dtype.is_floating_point else torch.arange(rows * n).reshape(rows, n) % 17 - 8
    x = x.to(dtype)
    t = dtype_name(dtype)
    body: list[Statement] = [Load("v0", 0, rows_of(2)), Scan("v1", "sum", "v0", t, t), Store(1, rows_of(2), "v1")]
    expected = torch.cumsum(x.double() if dtype.is_floating_point else x, -1)
    return make_case("cumsum", "row", _row_part(body), [rows, n, n], [x], [expected], [dtype])


def cumsum_normalised(rows: int, n: int) -> Case:
    """Prefix sums of exp(x), divided by the row's sum and by the largest prefix: a scan between two reductions."""
    x = draw(rows, n)
    body: list[Statement] = [
        Load("v0", 0, rows_of(2)), op("v1", "exp", "v0"), Reduce("v2", "sum", "v1", "float32"), op("v3", "div", "v1", "v2"),
        Scan("v4", "sum", "v3", "float32", "float32"), op("v5", "mul", "v4", 2.0), Reduce("v6", "max", "v5", "float32"),
        op("v7", "div", "v4", "v6"), Store(1, rows_of(2), "v7"),
    ]  # fmt: skip
    c = torch.cumsum(torch.softmax(x.double(), -1), -1)
    expected = c / (2 * c).amax(-1, keepdim=True)
    return make_case("cumsum_normalised", "row", _row_part(body), [rows, n, n], [x], [expected], [torch.float32])


def logsumexp(rows: int, n: int, dtype: torch.dtype = torch.float32) -> Case:
    """One result per row."""
    x = draw(rows, n, dtype=dtype)
    body: list[Statement] = [
        Load("v0", 0, rows_of(2)), Reduce("v1", "max", "v0", "float32"), op("v2", "sub", "v0", "v1"), op("v3", "exp", "v2"),
        Reduce("v4", "sum", "v3", "float32"), op("v5", "log", "v4"), op("v6", "add", "v5", "v1", dtype=dtype_name(dtype)),
        Store(1, D0, "v6"),
    ]  # fmt: skip
    return make_case("logsumexp", "row", _row_part(body), [rows, n, n], [x], [torch.logsumexp(x.double(), -1)], [dtype])


def cross_entropy(rows: int, n: int) -> Case:
    """``logsumexp(x) - x[target]``: a per-row load behind a checked index."""
    x = draw(rows, n, dtype=torch.bfloat16)
    target = torch.arange(rows) * 7 % n
    body: list[Statement] = [
        Load("t0", 1, D0), CheckedIndex("t1", "t0", p(1), False), Load("t2", 0, add(mul(D0, p(2)), ("v", "t1"))),
        Load("v0", 0, rows_of(2)), Reduce("v1", "max", "v0", "float32"), op("v2", "sub", "v0", "v1"), op("v3", "exp", "v2"),
        Reduce("v4", "sum", "v3", "float32"), op("v5", "log", "v4"), op("v6", "add", "v5", "v1"),
        op("v7", "sub", "v6", "t2"),
        Store(2, D0, "v7"),
    ]  # fmt: skip
    expected = torch.nn.functional.cross_entropy(x.double(), target, reduction="none")
    return make_case("cross_entropy", "row", _row_part(body), [rows, n, n], [x, target], [expected], [torch.float32])


def row_any(rows: int, n: int) -> Case:
    """``any`` and integer ``sum`` of a boolean mask in one pass."""
    x = draw(rows, n) > 2.0
    body: list[Statement] = [
        Load("v0", 0, rows_of(2)), Reduce("v1", "any", "v0", "bool"), op("v2", "cast", "v0", dtype="int64", compute="int64"),
        Reduce("v3", "sum", "v2", "int64"), Store(1, D0, "v1"), Store(2, D0, "v3"),
    ]  # fmt: skip
    return make_case("row_any", "row", _row_part(body), [rows, n, n], [x], [x.any(-1), x.sum(-1)], [torch.bool, torch.int64])


def causal_softmax(rows: int, n: int) -> Case:
    """Softmax of ``where(row <= d0, x, -inf)``: a mask by position."""
    x = draw(rows, n)
    body: list[Statement] = [
        Load("v0", 0, rows_of(2)), IndexValue("i", ROW), IndexValue("q", D0),
        op("m", "le", "i", "q", dtype="bool", compute="int64"),
        op("v1", "where", "m", "v0", float("-inf")), Reduce("v2", "max", "v1", "float32"), op("v3", "sub", "v1", "v2"),
        op("v4", "exp", "v3"), Reduce("v5", "sum", "v4", "float32"), op("v6", "div", "v4", "v5"), Store(1, rows_of(2), "v6"),
    ]  # fmt: skip
    masked = x.double().masked_fill(torch.arange(n)[None, :] > torch.arange(rows)[:, None], float("-inf"))
    return make_case(
        "causal_softmax", "row", _row_part(body), [rows, n, n], [x], [torch.softmax(masked, -1)], [torch.float32]
    )


def embed_norm(tokens: int, n: int, vocabulary: int = 50) -> Case:
    """Rows gathered by a checked index, scaled by their largest magnitude."""
    ids = torch.arange(tokens) * 13 % vocabulary
    ids = torch.where(torch.arange(tokens) % 3 == 1, ids - vocabulary, ids)
    table = draw(vocabulary, n)
    body: list[Statement] = [
        Load("i0", 0, D0), CheckedIndex("i1", "i0", p(2), True), Load("v0", 1, add(mul(("v", "i1"), p(3)), ROW)),
        op("v1", "abs", "v0"), Reduce("v2", "max", "v1", "float32"), op("v3", "div", "v0", "v2"), Store(2, rows_of(4), "v3"),
    ]  # fmt: skip
    rows = table[ids]
    expected = rows / rows.abs().amax(-1, keepdim=True)
    return make_case(
        "embed_norm", "row", _row_part(body), [tokens, n, vocabulary, n, n], [ids, table], [expected], [torch.float32]
    )


# -- pointwise programs ---------------------------------------------------------------------------------------------


def flat(
    n: int, fn: Callable[[torch.Tensor], torch.Tensor], body: list[Statement], x: torch.Tensor, out: torch.dtype, name: str
) -> Case:
    """One contiguous input to one contiguous output; the body reads ``v0`` and defines ``y``."""
    full: list[Statement] = [Load("v0", 0, D0), *body, Store(1, D0, "y")]
    return make_case(name, "pointwise", [Part(("p0",), None, tuple(full))], [n], [x], [fn(x)], [out])


def gelu(n: int, dtype: torch.dtype = torch.float32) -> Case:
    """``0.5 * x * (1 + erf(x / sqrt(2)))``."""
    compute = "float64" if dtype is torch.float64 else "float32"
    f = {"dtype": compute, "compute": compute}
    body: list[Statement] = [
        op("a", "mul", "v0", 0.7071067811865476, **f), op("b", "erf", "a", **f), op("c", "add", "b", 1.0, **f),
        op("e", "mul", "v0", 0.5, **f), Op("y", "mul", ("e", "c"), dtype_name(dtype), compute),
    ]  # fmt: skip
    x = draw(n, dtype=dtype)
    return flat(n, lambda t: torch.nn.functional.gelu(t.double()), body, x, dtype, "gelu")


def swiglu(n: int, dtype: torch.dtype = torch.bfloat16) -> Case:
    """``silu(a) * b`` with eager's rounding after silu."""
    a, b = draw(n, dtype=dtype), draw(n, dtype=dtype, seed=1)
    t = dtype_name(dtype)
    body: list[Statement] = [
        Load("v0", 0, D0), Load("v1", 1, D0), op("s", "sigmoid", "v0"), op("u", "mul", "v0", "s", dtype=t),
        op("y", "mul", "u", "v1", dtype=t), Store(2, D0, "y"),
    ]  # fmt: skip
    expected = torch.nn.functional.silu(a.double()) * b.double()
    return make_case("swiglu", "pointwise", [Part(("p0",), None, tuple(body))], [n], [a, b], [expected], [dtype])


def int_ops(n: int, dtype: torch.dtype) -> Case:
    """``(x * 3 + 7) // 5`` in integers, wrapped to the type."""
    t = dtype_name(dtype)
    f = {"dtype": t, "compute": t}
    body: list[Statement] = [op("a", "mul", "v0", 3, **f), op("b", "add", "a", 7, **f), op("y", "floor_div", "b", 5, **f)]
    x = ((torch.arange(n) * 37) % 251 - 125).to(dtype)
    return flat(n, lambda v: torch.div(v * 3 + 7, 5, rounding_mode="floor"), body, x, dtype, f"int_ops_{t}")


def compare(n: int) -> Case:
    """A boolean result: ``(x > 0.5) | isnan(x)``."""
    x = draw(n)
    x[:: max(1, n // 3)] = float("nan")
    body: list[Statement] = [
        op("a", "gt", "v0", 0.5, dtype="bool"), op("b", "isnan", "v0", dtype="bool"),
        op("y", "or", "a", "b", dtype="bool", compute="bool"),
    ]  # fmt: skip
    return flat(n, lambda v: (v > 0.5) | v.isnan(), body, x, torch.bool, "compare")


def bias_add(rows: int, n: int) -> Case:
    """``[R, C] + [C]``, relu; NaN must pass through."""
    x, b = draw(rows, n), draw(n, seed=1)
    if x.numel():
        x.view(-1)[0] = float("nan")
    body: list[Statement] = [
        Load("v0", 0, add(mul(D0, p(2)), D1)), Load("v1", 1, D1), op("v2", "add", "v0", "v1"), op("v3", "max", "v2", 0.0),
        Store(2, add(mul(D0, p(3)), D1), "v3"),
    ]  # fmt: skip
    return make_case(
        "bias_add",
        "pointwise",
        [Part(("p0", "p1"), None, tuple(body))],
        [rows, n, n, n],
        [x, b],
        [torch.relu(x + b)],
        [torch.float32],
    )


def channel_scale(batch: int, channels: int, hw: int) -> Case:
    """``[N, C, HW] * [C]`` in float16."""
    x, w = draw(batch, channels, hw, dtype=torch.float16), draw(channels, dtype=torch.float16, seed=1)
    place = add(mul(D0, p(3)), mul(D1, p(4)), D2)
    body: list[Statement] = [
        Load("v0", 0, place),
        Load("v1", 1, D1),
        op("v2", "mul", "v0", "v1", dtype="float16"),
        Store(2, place, "v2"),
    ]
    part = Part(("p0", "p1", "p2"), None, tuple(body))
    dims = [batch, channels, hw, channels * hw, hw]
    return make_case("channel_scale", "pointwise", [part], dims, [x, w], [x * w[:, None]], [torch.float16])


def transposed(rows: int, n: int) -> Case:
    """``x.t() + 1`` to a contiguous result: a strided read."""
    x = draw(n, rows).t()
    body: list[Statement] = [
        Load("v0", 0, add(D0, mul(D1, p(2)))),
        op("v1", "add", "v0", 1.0),
        Store(1, add(mul(D0, p(1)), D1), "v1"),
    ]
    return make_case(
        "transposed", "pointwise", [Part(("p0", "p1"), None, tuple(body))], [rows, n, rows], [x], [x + 1], [torch.float32]
    )


def concat(rows: int, left: int, right: int, dtype: torch.dtype = torch.bfloat16) -> Case:
    """``cat((-b, a), -1)``: masked loads by position, the second with an offset."""
    a, b = draw(rows, left, dtype=dtype), draw(rows, right, dtype=dtype, seed=1)
    t = dtype_name(dtype)
    body: list[Statement] = [
        IndexValue("i", D1), IndexValue("split", p(3)), op("m", "lt", "i", "split", dtype="bool", compute="int64"),
        op("k", "not", "m", dtype="bool", compute="bool"), Load("v0", 1, add(mul(D0, p(3)), D1), "m"),
        Load("v1", 0, add(mul(D0, p(2)), D1, mul(-1, p(3))), "k"), op("v2", "neg", "v0", dtype=t),
        op("v3", "where", "m", "v2", "v1", dtype=t), Store(2, add(mul(D0, p(1)), D1), "v3"),
    ]  # fmt: skip
    dims = [rows, left + right, left, right]
    return make_case(
        "concat", "pointwise", [Part(("p0", "p1"), None, tuple(body))], dims, [a, b], [torch.cat((-b, a), -1)], [dtype]
    )


def gather(tokens: int, n: int, vocabulary: int = 50) -> Case:
    """``table[ids]``, negative indices from the end."""
    ids = torch.arange(tokens) * 13 % vocabulary
    ids = torch.where(torch.arange(tokens) % 3 == 1, ids - vocabulary, ids)
    table = draw(vocabulary, n, dtype=torch.bfloat16)
    body: list[Statement] = [
        Load("i0", 0, D0), CheckedIndex("i1", "i0", p(2), True), Load("v0", 1, add(mul(("v", "i1"), p(1)), D1)),
        Store(2, add(mul(D0, p(1)), D1), "v0"),
    ]  # fmt: skip
    part = Part(("p0", "p1"), None, tuple(body))
    return make_case("gather", "pointwise", [part], [tokens, n, vocabulary], [ids, table], [table[ids]], [torch.bfloat16])


def two_parts(n: int, m: int) -> Case:
    """Two independent spaces in one launch: ``exp(x)`` and ``y * y`` in other sizes and types."""
    x, y = draw(n), draw(m, dtype=torch.float64)
    first = Part(("p0",), None, (Load("v0", 0, D0), op("v1", "exp", "v0"), Store(2, D0, "v1")))
    second = Part(
        ("p1",),
        None,
        (Load("w0", 1, D0), op("w1", "mul", "w0", "w0", dtype="float64", compute="float64"), Store(3, D0, "w1")),
    )
    expected = [torch.exp(x.double()), y * y]
    return make_case("two_parts", "pointwise", [first, second], [n, m], [x, y], expected, [torch.float32, torch.float64])


def scalar() -> Case:
    """No loop at all."""
    x = torch.tensor(3.0)
    body: list[Statement] = [Load("v0", 0, 0), op("v1", "add", "v0", 1.0), Store(1, 0, "v1")]
    return make_case("scalar", "pointwise", [Part((), None, tuple(body))], [], [x], [x + 1], [torch.float32])


ROW_BUILDERS: dict[str, Callable[[int, int], Case]] = {
    "softmax_f32": softmax,
    "softmax_bf16": lambda r, n: softmax(r, n, torch.bfloat16),
    "softmax_f16": lambda r, n: softmax(r, n, torch.float16),
    "softmax_f64": lambda r, n: softmax(r, n, torch.float64),
    "softmax_padded": lambda r, n: softmax(r, n, stride=n + 5),
    "rms_norm": rms_norm,
    "add_layer_norm_f32": add_layer_norm,
    "add_layer_norm_bf16": lambda r, n: add_layer_norm(r, n, torch.bfloat16),
    "int8_quant": int8_quant,
    "argmax": argmax,
    "argmin": lambda r, n: argmax(r, n, "argmin"),
    "cumsum_f32": cumsum,
    "cumsum_i64": lambda r, n: cumsum(r, n, torch.int64),
    "cumsum_normalised": cumsum_normalised,
    "logsumexp_bf16": lambda r, n: logsumexp(r, n, torch.bfloat16),
    "cross_entropy": cross_entropy,
    "row_any": row_any,
    "causal_softmax": causal_softmax,
    "embed_norm": embed_norm,
}
"""Row programs by (rows, row length)."""

FLAT_BUILDERS: dict[str, Callable[[int], Case]] = {
    "gelu_f32": gelu,
    "gelu_f64": lambda n: gelu(n, torch.float64),
    "swiglu_bf16": swiglu,
    "swiglu_f16": lambda n: swiglu(n, torch.float16),
    "int_ops_i64": lambda n: int_ops(n, torch.int64),
    "int_ops_i32": lambda n: int_ops(n, torch.int32),
    "int_ops_i8": lambda n: int_ops(n, torch.int8),
    "compare": compare,
    "two_parts": lambda n: two_parts(n, n + 3),
}
"""Pointwise programs over one dimension, by its size."""

GRID_BUILDERS: dict[str, Callable[[int, int], Case]] = {
    "bias_add": bias_add,
    "channel_scale": lambda r, n: channel_scale(r, 5, n),
    "transposed": transposed,
    "concat": lambda r, n: concat(r, n, n),
    "concat_uneven": lambda r, n: concat(r, n, n // 3 + 1),
    "gather": gather,
}
"""Pointwise programs over two dimensions or more, by (rows, inner size)."""
