"""Run a lowered program with plain torch operations over whole index grids: the oracle for lowering and templates.

Slow and simple on purpose: one tensor of the iteration space per statement, no loops, no generated source.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_forge.records.program import CheckedIndex, IndexValue, Load, Lowered, Op, Part, Reduce, Scan, Store

_FUNCTIONS = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.true_divide, "remainder": torch.remainder,
    "fmod": torch.fmod,
    "pow": torch.pow, "neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "reciprocal": torch.reciprocal,
    "square": torch.square,
    "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "exp": torch.exp, "exp2": torch.exp2, "expm1": torch.expm1,
    "log": torch.log,
    "log2": torch.log2, "log10": torch.log10, "log1p": torch.log1p, "sin": torch.sin, "cos": torch.cos,
    "tan": torch.tan, "tanh": torch.tanh,
    "sinh": torch.sinh, "cosh": torch.cosh, "asin": torch.asin, "acos": torch.acos, "atan": torch.atan,
    "atan2": torch.atan2,
    "erf": torch.erf, "erfc": torch.erfc, "sigmoid": torch.sigmoid, "floor": torch.floor, "ceil": torch.ceil,
    "trunc": torch.trunc,
    "round": torch.round, "max": torch.maximum, "min": torch.minimum, "lt": torch.lt, "le": torch.le, "gt": torch.gt,
    "ge": torch.ge,
    "eq": torch.eq, "ne": torch.ne, "where": torch.where, "isnan": torch.isnan, "isinf": torch.isinf,
    "and": torch.logical_and,
    "or": torch.logical_or, "xor": torch.logical_xor, "not": torch.logical_not, "bit_and": torch.bitwise_and,
    "bit_or": torch.bitwise_or,
    "bit_xor": torch.bitwise_xor, "bit_not": torch.bitwise_not, "cast": lambda x: x,
    "trunc_div": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "floor_div": lambda a, b: torch.div(a, b, rounding_mode="floor"),
}  # fmt: skip


def run(lowered: Lowered, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
    """Execute every part; ``outputs`` are allocated by the caller and written through their strides."""
    dims = dict(zip(lowered.program.params, lowered.values, strict=True))
    storages = [_flat(t) for t in (*inputs, *outputs)]
    for part in lowered.program.parts:
        _Part(part, dims, storages, lowered.program.tensors).run()


def _flat(t: torch.Tensor) -> torch.Tensor:
    """All elements reachable from the tensor's data pointer."""
    reach = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return torch.as_strided(t, (reach,), (1,), t.storage_offset())


class _Part:
    def __init__(self, part: Part, dims: dict[str, int], storages: list[torch.Tensor], tensors: Any) -> None:
        self.part, self.dims, self.storages, self.tensors = part, dims, storages, tensors
        sizes = [dims[p] for p in part.outer] + ([dims[part.row]] if part.row else [1])
        grids = torch.meshgrid(*[torch.arange(n) for n in sizes], indexing="ij")
        self.outer, self.row = grids[:-1], grids[-1]
        self.values: dict[str, torch.Tensor] = {}

    def run(self) -> None:
        for s in self.part.body:
            if isinstance(s, Store):
                self.storages[s.tensor][self.index(s.index)] = self.full(self.values[s.value]).to(
                    self.storages[s.tensor].dtype
                )
            else:
                self.values[s.name] = self.evaluate(s)

    def full(self, v: torch.Tensor) -> torch.Tensor:
        return v.expand(self.row.shape)

    def evaluate(self, s: Any) -> torch.Tensor:
        match s:
            case Load():
                index = self.index(s.index)
                if s.mask is None:
                    assert int(index.min()) >= 0
                    assert int(index.max()) < self.storages[s.tensor].numel()
                    return self.storages[s.tensor][index]
                mask = self.full(self.values[s.mask])
                value = self.storages[s.tensor][torch.where(mask, index, torch.zeros_like(index))]
                return torch.where(mask, value, torch.zeros((), dtype=value.dtype))
            case Op():
                compute = getattr(torch, s.compute)
                args = [self.operand(a, compute, s.fn == "where" and k == 0) for k, a in enumerate(s.args)]
                return _FUNCTIONS[s.fn](*args).to(getattr(torch, s.dtype))
            case IndexValue():
                return self.index(s.index)
            case CheckedIndex():
                v, size = self.values[s.arg].long(), self.index(s.size)
                v = torch.where(v < 0, v + size, v) if s.wrap else v
                assert bool(((v >= 0) & (v < size)).all()), "index out of range"
                return v
            case Reduce():
                return self.reduce(s)
            case Scan():
                v = self.full(self.values[s.arg]).to(getattr(torch, s.compute))
                return {"sum": torch.cumsum, "prod": torch.cumprod}[s.fn](v, -1).to(getattr(torch, s.dtype))
        raise AssertionError(s)

    def operand(self, a: Any, compute: torch.dtype, condition: bool) -> torch.Tensor:
        if isinstance(a, str):
            return self.values[a] if condition else self.values[a].to(compute)
        return torch.tensor(a, dtype=torch.bool if condition else compute)

    def reduce(self, s: Reduce) -> torch.Tensor:
        v = self.full(self.values[s.arg]).to(getattr(torch, s.compute))
        fold = {
            "sum": lambda x: x.sum(-1, keepdim=True),
            "prod": lambda x: x.prod(-1, keepdim=True),
            "max": lambda x: x.amax(-1, keepdim=True),
            "min": lambda x: x.amin(-1, keepdim=True),
            "any": lambda x: x.any(-1, keepdim=True),
            "all": lambda x: x.all(-1, keepdim=True),
            "argmax": lambda x: x.argmax(-1, keepdim=True),
            "argmin": lambda x: x.argmin(-1, keepdim=True),
        }
        return fold[s.fn](v)

    def index(self, e: Any) -> torch.Tensor:
        if isinstance(e, int):
            return torch.tensor(e).expand(self.row.shape)
        match e[0]:
            case "p":
                return torch.tensor(self.dims[e[1]]).expand(self.row.shape)
            case "d":
                return self.outer[e[1]]
            case "row":
                return self.row
            case "v":
                return self.full(self.values[e[1]])
            case "+":
                total = self.index(e[1])
                for x in e[2:]:
                    total = total + self.index(x)
                return total
            case "*":
                product = self.index(e[1])
                for x in e[2:]:
                    product = product * self.index(x)
                return product
            case "//":
                return self.index(e[1]) // self.index(e[2])
            case "%":
                return self.index(e[1]) % self.index(e[2])
        raise AssertionError(e)
