"""Reductions: the type they accumulate in, what they start from, how two partial results combine."""

from __future__ import annotations

from collections.abc import Mapping

from torch_forge.generation.templates.expressions import REGISTER, Names, convert, literal
from torch_forge.records.program import Reduce
from torch_forge.records.tensors import DTYPES

CPU_FOLD: Mapping[str, str] = {"sum": "sum", "prod": "prod", "max": "max", "min": "min", "any": "max", "all": "min"}
"""Reduction -> suffix of ``forge_fold_*``."""
CUDA_FOLD: Mapping[str, str] = {
    "sum": "ForgeSum", "prod": "ForgeProd", "max": "ForgeMax", "min": "ForgeMin", "any": "ForgeMax", "all": "ForgeMin",
    "argmax": "ForgeArgMax", "argmin": "ForgeArgMin",
}  # fmt: skip
"""Reduction -> the type in forge_math_cuda.h that combines two partial results."""


def is_arg(r: Reduce) -> bool:
    """Whether the result is a position."""
    return r.fn in ("argmax", "argmin")


def accumulator_type(r: Reduce) -> str:
    """C type in which a reduction accumulates; truth values are counted as integers, which shuffles can move."""
    return "int32_t" if r.fn in ("any", "all") or r.compute == "bool" else REGISTER[r.compute]


def total_type(r: Reduce) -> str:
    """C type in which the CPU adds up blocks of a row."""
    return "double" if r.fn in ("sum", "prod") and accumulator_type(r) == "float" else accumulator_type(r)


def identity(r: Reduce, ctype: str) -> str:
    """The value that changes nothing."""
    if r.fn in ("sum", "prod", "any", "all"):
        return literal(0 if r.fn in ("sum", "any") else 1, ctype)
    low = r.fn in ("max", "argmax")
    if ctype in ("int32_t", "int64_t"):
        bits = 8 * DTYPES[ctype.removesuffix("_t")].nbytes
        return literal(-(2 ** (bits - 1)) if low else 2 ** (bits - 1) - 1, ctype)
    return literal(float("-inf") if low else float("inf"), ctype)


def fold(r: Reduce, a: str, b: str) -> str:
    """``a`` and ``b`` combined, on the CPU."""
    infix = {"sum": "+", "prod": "*"}.get(r.fn)
    if infix and accumulator_type(r) in ("float", "double"):
        return f"{a} {infix} {b}"
    return f"forge_{'add' if r.fn == 'sum' else 'mul' if r.fn == 'prod' else CPU_FOLD[r.fn]}({a}, {b})"


def truth_or_value(names: Names, r: Reduce, ctype: str) -> str:
    """The reduction's argument as what it accumulates: for ``any`` and ``all``, whether it is not zero."""
    if r.fn in ("any", "all"):
        return convert(names.as_type(r.arg, "bool"), "bool", ctype)
    return names.as_type(r.arg, ctype)
