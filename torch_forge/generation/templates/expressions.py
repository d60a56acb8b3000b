"""Scalar expressions as C: the one printer both backends share.

Values live in register types (``REGISTER``); each ``Op`` becomes ``round_to(dtype, fn(args as compute))`` with
functions of forge_math.h. Plain operators are printed where they mean exactly that; where they would let the
compiler fuse (CUDA floats) or overflow (integers), the function of the same meaning is.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch_forge.records.program import Index, Op
from torch_forge.records.tensors import DTYPES

REGISTER: Mapping[str, str] = {
    "float64": "double", "float32": "float", "float16": "float", "bfloat16": "float",
    "int64": "int64_t", "int32": "int32_t", "int16": "int32_t", "int8": "int32_t", "uint8": "int32_t", "bool": "bool",
}  # fmt: skip
"""C type of a value in flight."""

STORAGE: Mapping[str, str] = {
    **REGISTER, "float16": "forge_f16", "bfloat16": "forge_bf16", "int16": "int16_t", "int8": "int8_t", "uint8": "uint8_t",
}  # fmt: skip
"""C type of an element in memory."""

HALVES: Mapping[str, str] = {"float16": "f16", "bfloat16": "bf16"}
"""The 16-bit floats and their name in forge_math.h."""

INFIX: Mapping[str, str] = {
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "and": "&", "or": "|", "xor": "^",
    "bit_and": "&", "bit_or": "|", "bit_xor": "^",
}  # fmt: skip
ARITHMETIC: Mapping[str, str] = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
CHOICES = frozenset({"where", "max", "min", "neg", "abs", "cast"})
"""Functions whose result is one of their arguments, up to sign: exact in the arguments' type."""
LOGICAL = frozenset({"and", "or", "xor", "not"})

_RESERVED = frozenset(
    [
        "row",
        "row0",
        "lane",
        "j",
        "t",
        "n",
        "a",
        "tile",
        "task",
        "stop",
        "block",
        "begin",
        "end",
        "chunk",
        "team",
        "failed",
        "rows",
        "count",
        "config",
        "threads",
        "in",
        "out",
        "dims",
        "auto",
        "bool",
        "char",
        "class",
        "const",
        "double",
        "else",
        "enum",
        "float",
        "for",
        "if",
        "int",
        "long",
        "new",
        "return",
        "short",
        "signed",
        "static",
        "struct",
        "switch",
        "this",
        "union",
        "unsigned",
        "void",
        "while",
    ]
)


def c_name(name: str) -> str:
    """A program name as a C identifier that collides with nothing the templates define."""
    taken = name in _RESERVED or re.fullmatch(r"(in|out|p|d)\d+|forge\w*", name)
    return name if re.fullmatch(r"[A-Za-z]\w*", name) and not taken else "v_" + re.sub(r"\W", "_", name)


def literal(value: float | bool, ctype: str) -> str:
    """A Python number as a C literal of a register type, rounded once."""
    if ctype == "bool":
        return "true" if value else "false"
    if ctype in ("int32_t", "int64_t"):
        whole = _wrapped(int(value), 32 if ctype == "int32_t" else 64)
        if ctype == "int32_t":
            return str(whole) if whole != -(2**31) else "INT32_MIN"
        return f"int64_t({whole})" if whole != -(2**63) else "INT64_MIN"
    return _float_literal(float(value), ctype)


def _wrapped(value: int, bits: int) -> int:
    half = 1 << (bits - 1)
    return (value + half) % (2 * half) - half


def _float_literal(value: float, ctype: str) -> str:
    if math.isnan(value):
        return f"{ctype}(FORGE_NAN)"
    if ctype == "float":
        value = to_float32(value)
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}{ctype}(FORGE_INF)"
    if ctype == "double":
        return repr(value)
    shortest = next(text for digits in range(1, 10) if to_float32(float(text := f"{value:.{digits}g}")) == value)
    return (shortest if "." in shortest or "e" in shortest else shortest + ".0") + "f"


def to_float32(value: float) -> float:
    """The nearest float32; infinite where that overflows."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def fits_half(value: float | bool, dtype: str) -> bool:
    """Whether a number is exactly a float16 or bfloat16."""
    value = float(value)
    if not math.isfinite(value) or value == 0:
        return True
    if dtype == "float16":
        try:
            return bool(struct.unpack("e", struct.pack("e", value))[0] == value)
        except OverflowError:
            return False
    return to_float32(value) == value and struct.unpack("I", struct.pack("f", value))[0] & 0xFFFF == 0


@dataclass
class Names:
    """Where values are at one point of the source: C expression, element type, whether held unrounded or narrow."""

    text: dict[str, str] = field(default_factory=dict)
    dtype: dict[str, str] = field(default_factory=dict)
    unrounded: frozenset[str] = frozenset()
    """Values whose only use is a store that rounds them."""
    narrow: frozenset[str] = frozenset()
    """int64 values held in int32_t, since they cannot be larger."""

    def copy(self) -> Names:
        return Names(dict(self.text), self.dtype, self.unrounded, self.narrow)

    def ctype(self, name: str) -> str:
        """C type in which a value is held."""
        return "int32_t" if name in self.narrow else REGISTER[self.dtype[name]]

    def as_type(self, arg: str | float | bool, ctype: str) -> str:
        """An argument converted to a register type."""
        if not isinstance(arg, str):
            return literal(arg, ctype)
        return convert(self.text[arg], self.ctype(arg), ctype)


def convert(text: str, have: str, want: str) -> str:
    """A conversion between register types; to bool is a test against zero."""
    if have == want:
        return text
    return f"({text} != 0)" if want == "bool" else f"{want}({text})"


def round_to(text: str, have: str, dtype: str) -> str:
    """A value of register type ``have`` rounded to an element type, in that type's register."""
    if dtype in HALVES:
        return f"forge_round_{HALVES[dtype]}({convert(text, have, 'float')})"
    if dtype in ("int16", "int8", "uint8"):
        return f"int32_t({STORAGE[dtype]}({convert(text, have, 'int32_t')}))" if have != "bool" else f"int32_t({text})"
    return convert(text, have, REGISTER[dtype])


def op_text(op: Op, names: Names, backend: str) -> str:
    """The expression that computes ``op`` from the names in scope."""
    if op.fn in LOGICAL or (op.fn == "where" and op.compute == "bool"):
        have = "bool"
    else:
        have = REGISTER[op.compute]
        if op.fn in INFIX and have == "int64_t" and all(_narrow_arg(a, names) for a in op.args):
            have = "int32_t"
    text, result = _call(op, names, have, backend)
    if op.name in names.unrounded or (op.dtype in HALVES and _exact(op, names)):
        return convert(text, result, REGISTER[op.dtype])
    return round_to(text, result, op.dtype)


def _narrow_arg(arg: str | float | bool, names: Names) -> bool:
    return arg in names.narrow if isinstance(arg, str) else isinstance(arg, int) and abs(arg) < 2**31


def _exact(op: Op, names: Names) -> bool:
    """Whether the result needs no rounding, being an argument that is already of the type."""
    args = op.args[1:] if op.fn == "where" else op.args
    return op.fn in CHOICES and all(
        names.dtype[a] == op.dtype and a not in names.unrounded if isinstance(a, str) else fits_half(a, op.dtype)
        for a in args
    )


def _call(op: Op, names: Names, have: str, backend: str) -> tuple[str, str]:
    """The bare expression and its register type."""
    if op.fn == "where":
        condition = names.as_type(op.args[0], "bool")
        return f"({condition} ? {names.as_type(op.args[1], have)} : {names.as_type(op.args[2], have)})", have
    args = [names.as_type(a, have) for a in op.args]
    if op.fn == "cast":
        return args[0], have
    if op.fn == "pow" and not isinstance(op.args[1], str):
        return _power(args[0], float(op.args[1]), args[1], have, backend), have
    if op.fn in INFIX:
        return f"({args[0]} {INFIX[op.fn]} {args[1]})", have if op.fn.startswith("bit_") else "bool"
    if op.fn in ("not", "bit_not"):
        return (f"(!{args[0]})", "bool") if have == "bool" else (f"(~{args[0]})", have)
    if op.fn in ("shl", "shr"):
        width = DTYPES[op.compute].nbytes * 8
        return f"forge_int_{op.fn}({args[0]}, {args[1]}, {width})", have
    if op.fn == "div" and backend == "cuda" and have in ("float", "double") and not isinstance(op.args[1], str):
        # As eager on a GPU, which multiplies by the reciprocal of a number: a rounding that decides ties further on.
        return _arithmetic("mul", [args[0], f"({'1.0f' if have == 'float' else '1.0'} / {args[1]})"], have, backend), have
    if op.fn in ARITHMETIC:
        return _arithmetic(op.fn, args, have, backend), have
    return f"forge_{op.fn}({', '.join(args)})", "bool" if op.fn in ("isnan", "isinf") else have


def _arithmetic(fn: str, args: list[str], have: str, backend: str) -> str:
    if have == "bool":  # torch: + is or, * is and
        return f"({args[0]} {'|' if fn == 'add' else '&' if fn == 'mul' else '^'} {args[1]})"
    if backend == "cpu" and have in ("float", "double"):
        return f"({args[0]} {ARITHMETIC[fn]} {args[1]})"
    return (
        f"forge_{fn}({args[0]}, {args[1]})"
        if fn != "div" or have in ("float", "double")
        else f"forge_trunc_div({', '.join(args)})"
    )


def _power(base: str, exponent: float, exponent_text: str, have: str, backend: str) -> str:
    """Small powers as eager computes them; anything else through the library."""
    if have in ("float", "double"):
        if exponent == 2.0:
            return f"forge_square({base})"
        if exponent == 3.0:
            return _arithmetic("mul", [f"forge_square({base})", base], have, backend)
        named = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal", 1.0: ""}
        if exponent in named:
            return f"forge_{named[exponent]}({base})" if named[exponent] else base
    return f"forge_pow({base}, {exponent_text})"


def stored(value: str, dtype: str, names: Names) -> str:
    """A value as an element of a tensor."""
    have = names.dtype[value]
    if dtype in HALVES:
        exact = have == dtype and value not in names.unrounded
        return f"forge_{HALVES[dtype]}_{'exact' if exact else 'from'}({names.as_type(value, 'float')})"
    register = names.as_type(value, REGISTER[dtype])
    return register if STORAGE[dtype] == REGISTER[dtype] else f"{STORAGE[dtype]}({register})"


def index_text(index: Index, variables: Mapping[Index, str], names: Names, ctype: str) -> str:
    """An index expression in C integers of type ``ctype``; loop variables by ``variables``."""
    if isinstance(index, int):
        return str(index)
    match index[0]:
        case "p":
            return str(index[1])
        case "d" | "row":
            return variables[index]
        case "v":
            return convert(names.text[index[1]], names.ctype(index[1]), ctype)
    if index[0] == "+":
        return _sum([index_text(o, variables, names, ctype) for o in index[1:]])
    operands = [_factor(o, index_text(o, variables, names, ctype), first=k == 0) for k, o in enumerate(index[1:])]
    if index[0] == "*":
        operands = [o for o in operands if o != "1"] or ["1"]
        if operands[0] == "-1" and len(operands) > 1:
            operands = [f"-{operands[1]}", *operands[2:]]
    return f" {index[0].replace('//', '/')} ".join(operands)


def _sum(operands: list[str]) -> str:
    kept = [o for o in operands if o != "0"] or ["0"]
    return kept[0] + "".join(f" - {o[1:]}" if o.startswith("-") else f" + {o}" for o in kept[1:])


def _factor(index: Index, text: str, *, first: bool) -> str:
    """An operand of a product or quotient: sums in parentheses, and every operator but the first of a chain."""
    simple = isinstance(index, int) or index[0] in ("p", "v") or re.fullmatch(r"\w+", text)
    chain = not isinstance(index, int) and index[0] == "*" and first
    return text if simple or chain else f"({text})"
