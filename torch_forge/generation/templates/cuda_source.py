"""What the CUDA templates' sources have in common: arguments, their filling on the host, the way back to config 0.

A config with vector accesses is used only where pointers and strides allow it; that is decided at launch, from the
conditions that the analysis could not settle, so a kernel never depends on what its caller happens to pass.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch_forge.generation.templates.cuda_plan import Launch, Vectors
from torch_forge.generation.templates.expressions import Names, index_text
from torch_forge.generation.templates.facts import Job, params_of
from torch_forge.generation.templates.lanes import crossing
from torch_forge.generation.templates.schedule import live
from torch_forge.generation.templates.terms import Step
from torch_forge.generation.templates.writer import Writer
from torch_forge.records.kernels import Config
from torch_forge.records.program import Index, Load, Part, Store
from torch_forge.records.tensors import DTYPES


def config(job: Job, launch: Launch) -> Config:
    """The record of one instantiation."""
    bytes_wide = max((min(16, launch.width * DTYPES[d].nbytes) for d in job.tensor_dtypes), default=1)
    return Config(launch.params(), job.align_bytes if launch.width == 1 else max(bytes_wide, job.align_bytes))


def preamble(w: Writer, job: Job, parts: list[Part], statics: dict[str, int], *, divisors: bool = False) -> None:
    """Includes, compiled-in parameters and what the kernel is given."""
    index = f"int{job.index_bits}_t"
    w.lines('#include "forge.h"', '#include "forge_math.h"', "")
    for name, value in statics.items():
        w.line(f"constexpr {index} {name} = {value};")
    if statics:
        w.line()
    with w.block("struct Args", "};"):
        for t in tensors_of(parts):
            const = "const " if job.lowered.program.tensors[t].role == "in" else ""
            w.line(f"{const}{job.storage(t)}* {job.pointer(t)};")
        dynamic = _dynamic(job, parts, statics)
        for p in dynamic:
            w.line(f"{index} {p};")
        if divisors:
            for p in _divided(job, parts, statics):
                w.line(f"ForgeDivisor {p}_divisor;")
            if len(parts) > 1:
                w.line(f"int {', '.join(f'blocks{k}' for k in range(len(parts)))};")
        else:
            w.line("int64_t rows;")
    w.line()


def tensors_of(parts: list[Part]) -> list[int]:
    """Positions of the tensors that the parts touch, in order."""
    return sorted({s.tensor for part in parts for s in live(part.body) if isinstance(s, (Load, Store))})


def _dynamic(job: Job, parts: list[Part], statics: dict[str, int]) -> list[str]:
    wanted = {p for part in parts for p in params_of(part)}
    return [p for p in job.lowered.program.params if p in wanted and p not in statics]


def _divided(job: Job, parts: list[Part], statics: dict[str, int]) -> list[str]:
    """Run-time sizes by which a linear element number is divided."""
    inner = {p for part in parts if part.outer for p in (*part.outer[1:], part.row)}
    inner |= {part.outer[0] for part in parts if crossing(part, job.size) is not None}
    return [p for p in job.lowered.program.params if p in inner and p not in statics] if job.index_bits == 32 else []


def aliases(w: Writer, job: Job, body: Writer, statics: dict[str, int]) -> None:
    """Run-time parameters that the lines of ``body`` mention, by their own names."""
    for p in job.lowered.program.params:
        if p not in statics and body.mentions(p):
            w.line(f"const int{job.index_bits}_t {p} = a.{p};")
    w.include(body)


def decompose(w: Writer, part: Part, index: str) -> None:
    """From a row number to the outer loop variables."""
    for k in reversed(range(1, len(part.outer))):
        w.line(f"const {index} d{k} = rest % {part.outer[k]};")
        w.line(f"rest /= {part.outer[k]};")
    if part.outer:
        w.line(f"const {index} d0 = rest;")


def fill(w: Writer, job: Job, parts: list[Part], statics: dict[str, int], *, divisors: bool = False) -> None:
    """Host code that sets the kernel's arguments."""
    for t in tensors_of(parts):
        tensor = job.lowered.program.tensors[t]
        const = "const " if tensor.role == "in" else ""
        w.line(f"a.{job.pointer(t)} = static_cast<{const}{job.storage(t)}*>({tensor.role}[{tensor.position}].data);")
    for p in _dynamic(job, parts, statics):
        w.line(f"a.{p} = int{job.index_bits}_t(dims[{job.lowered.program.params.index(p)}]);")
    if divisors:
        for p in _divided(job, parts, statics):
            w.line(f"a.{p}_divisor = forge_divisor(dims[{job.lowered.program.params.index(p)}]);")


def fallback(
    w: Writer, job: Job, parts: list[Part], wide: list[Vectors], launches: list[Launch], statics: dict[str, int],
    must_divide: list[str | None],
) -> None:  # fmt: skip
    """Host code that turns a vector config into config 0 where pointers or strides do not allow vectors."""
    w.line(f"if (config < 0 || config >= {len(launches)}) return FORGE_BAD_CONFIG;")
    if all(launch.width == 1 for launch in launches):
        return
    w.line(f"constexpr int kWidths[] = {{{', '.join(str(launch.width) for launch in launches)}}};")
    w.line("const int width = kWidths[config];")
    checks = [f"forge_aligned(a.{job.pointer(t)}, {_vector_bytes(job, t)})" for t in vector_tensors(parts, wide)]
    for expression in dict.fromkeys(
        [m for v in wide for m in v.lanes.multiples] + [("p", p) for p in must_divide if p and p not in statics]
    ):
        text = index_text(_host(job, expression, statics), {}, Names(), "int64_t")
        checks.append(f"({text}) % width == 0")
    if checks:
        w.line("const bool fits = " + checks[0] + "".join(f"\n      && {check}" for check in checks[1:]) + ";")
        w.line("if (width > 1 && !fits) config = 0;  // vectors would be misaligned")


def vector_tensors(parts: list[Part], wide: list[Vectors]) -> list[int]:
    found = set()
    for part, v in zip(parts, wide, strict=True):
        for s in live(part.body):
            if isinstance(s, (Load, Store)) and id(s) in v.lanes.pattern and v.lanes.pattern[id(s)].step is Step.ONE:
                found.add(s.tensor)
    return sorted(found)


def _vector_bytes(job: Job, tensor: int) -> str:
    nbytes = DTYPES[job.tensor_dtypes[tensor]].nbytes
    return f"{nbytes} * width < 16 ? {nbytes} * width : 16"


def _host(job: Job, expression: Index, statics: dict[str, int]) -> Index:
    """The expression with run-time parameters read from ``dims``."""
    if isinstance(expression, int):
        return expression
    if expression[0] == "p":
        name = expression[1]
        return expression if name in statics else ("p", f"dims[{job.lowered.program.params.index(name)}]")
    return (expression[0], *(_host(job, e, statics) for e in expression[1:]))


def largest_moved(job: Job, parts: list[Part], wide: list[Vectors]) -> int:
    """Bytes of the largest element that is moved in vectors."""
    return max((DTYPES[job.tensor_dtypes[t]].nbytes for t in vector_tensors(parts, wide)), default=4)


def dims_product(job: Job, params: Iterable[str]) -> str:
    """The product of parameters in host code."""
    return " * ".join(f"dims[{job.lowered.program.params.index(p)}]" for p in params) or "1"
