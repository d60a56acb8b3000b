"""Scalar expressions as C: literals rounded once, conversions where types differ, rounding where eager rounds."""

from __future__ import annotations

import math

import pytest

from torch_forge.generation.templates.expressions import Names, c_name, fits_half, literal, op_text, stored
from torch_forge.records.program import FUNCTIONS, Op

LITERALS = {
    "float": (0.1, "float", "0.1f"),
    "float that needs nine digits": (1 / 3, "float", "0.33333334f"),
    "whole float": (2.0, "float", "2.0f"),
    "double": (0.1, "double", "0.1"),
    "overflows float": (1e39, "float", "float(FORGE_INF)"),
    "minus infinity": (-math.inf, "double", "-double(FORGE_INF)"),
    "nan": (math.nan, "float", "float(FORGE_NAN)"),
    "smallest int64": (-(2**63), "int64_t", "INT64_MIN"),
    "int from float": (3.0, "int32_t", "3"),
    "int wraps": (2**31 + 5, "int32_t", str(-(2**31) + 5)),
    "bool": (True, "bool", "true"),
    "bool as number": (True, "float", "1.0f"),
}


@pytest.mark.parametrize(("value", "ctype", "text"), LITERALS.values(), ids=LITERALS)
def test_literal(value, ctype, text):
    assert literal(value, ctype) == text


def names(**dtypes: str) -> Names:
    return Names({n: n for n in dtypes}, dtypes)


F32 = "float32"
OPS = {
    "plain on the CPU": (Op("y", "add", ("x", 1.0), F32, F32), {"x": F32}, "cpu", "(x + 1.0f)"),
    "never fused on CUDA": (Op("y", "add", ("x", 1.0), F32, F32), {"x": F32}, "cuda", "forge_add(x, 1.0f)"),
    "rounded to bf16": (Op("y", "mul", ("x", "x"), "bfloat16", F32), {"x": "bfloat16"}, "cpu", "forge_round_bf16((x * x))"),
    "a choice of bf16 is exact": (
        Op("y", "max", ("x", 0.5), "bfloat16", F32),
        {"x": "bfloat16"},
        "cpu",
        "forge_max(x, 0.5f)",
    ),
    "but not with 0.1": (
        Op("y", "max", ("x", 0.1), "bfloat16", F32),
        {"x": "bfloat16"},
        "cpu",
        "forge_round_bf16(forge_max(x, 0.1f))",
    ),
    "int8 wraps": (Op("y", "add", ("x", 1), "int8", "int8"), {"x": "int8"}, "cpu", "int32_t(int8_t(forge_add(x, 1)))"),
    "int to float": (Op("y", "div", ("x", 2), F32, F32), {"x": "int64"}, "cpu", "(float(x) / 2.0f)"),
    "float to bool": (Op("y", "cast", ("x",), "bool", F32), {"x": F32}, "cpu", "(x != 0)"),
    "float to uint8": (Op("y", "cast", ("x",), "uint8", F32), {"x": F32}, "cpu", "int32_t(uint8_t(int32_t(x)))"),
    "square": (Op("y", "pow", ("x", 2.0), F32, F32), {"x": F32}, "cpu", "forge_square(x)"),
    "root": (Op("y", "pow", ("x", 0.5), F32, F32), {"x": F32}, "cuda", "forge_sqrt(x)"),
    "power": (Op("y", "pow", ("x", 2.5), F32, F32), {"x": F32}, "cpu", "forge_pow(x, 2.5f)"),
    "where": (Op("y", "where", ("c", "x", 0), F32, F32), {"x": F32, "c": "bool"}, "cpu", "(c ? x : 0.0f)"),
    "not": (Op("y", "not", ("c",), "bool", "bool"), {"c": "bool"}, "cpu", "(!c)"),
    "bool sum is or": (Op("y", "add", ("c", "c"), "bool", "bool"), {"c": "bool"}, "cpu", "(c | c)"),
    "shift knows its width": (Op("y", "shl", ("x", 3), "int32", "int32"), {"x": "int32"}, "cpu", "forge_int_shl(x, 3, 32)"),
    "compares in the compute type": (
        Op("y", "lt", ("x", "k"), "bool", F32),
        {"x": "bfloat16", "k": "int32"},
        "cuda",
        "(x < float(k))",
    ),
}


@pytest.mark.parametrize(("op", "dtypes", "backend", "text"), OPS.values(), ids=OPS)
def test_op(op, dtypes, backend, text):
    assert op_text(op, names(**dtypes), backend) == text


def test_narrow_positions_compare_in_32_bits():
    scope = Names({"i": "i", "q": "q"}, {"i": "int64", "q": "int64"}, narrow=frozenset({"i", "q"}))
    assert op_text(Op("m", "le", ("i", "q"), "bool", "int64"), scope, "cpu") == "(i <= q)"
    assert op_text(Op("m", "le", ("i", 2**40), "bool", "int64"), scope, "cpu") == f"(int64_t(i) <= int64_t({2**40}))"


@pytest.mark.parametrize("fn", FUNCTIONS)
@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_every_function_prints(fn, backend):
    logical = fn in ("and", "or", "xor", "not")
    integer = fn.startswith("bit_") or fn in ("shl", "shr")
    dtype = "bool" if logical else "int32" if integer else F32
    scope = names(a=dtype, b=dtype, c=dtype, m="bool")
    args = ("m", "a", "b") if fn == "where" else ("a", "b", "c")[: FUNCTIONS[fn]]
    text = op_text(Op("y", fn, args, dtype, dtype), scope, backend)
    assert all(arg in text for arg in args)


STORES = {
    "exact bf16 is cut off": ("bfloat16", "bfloat16", False, "forge_bf16_exact(x)"),
    "unrounded bf16 is rounded here": ("bfloat16", "bfloat16", True, "forge_bf16_from(x)"),
    "float to f16": (F32, "float16", False, "forge_f16_from(x)"),
    "int8": ("int8", "int8", False, "int8_t(x)"),
    "float": (F32, F32, False, "x"),
}


@pytest.mark.parametrize(("have", "tensor", "unrounded", "text"), STORES.values(), ids=STORES)
def test_stored(have, tensor, unrounded, text):
    scope = Names({"x": "x"}, {"x": have}, frozenset({"x"} if unrounded else ()))
    assert stored("x", tensor, scope) == text


@pytest.mark.parametrize(
    ("name", "expected"), [("v1", "v1"), ("row", "v_row"), ("p0", "v_p0"), ("a.b", "v_a_b"), ("double", "v_double")]
)
def test_c_name(name, expected):
    assert c_name(name) == expected


@pytest.mark.parametrize(
    ("value", "dtype", "fits"),
    [(0.5, "bfloat16", True), (0.1, "bfloat16", False), (65504.0, "float16", True), (65505.0, "float16", False)],
)
def test_fits_half(value, dtype, fits):
    assert fits_half(value, dtype) is fits
