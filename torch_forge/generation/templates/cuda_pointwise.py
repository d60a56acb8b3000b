"""The CUDA template ``pointwise``: a linear number per vector, taken apart into loop variables.

Several iteration spaces share one launch, each with its own range of blocks. A tensor that is read across its rows is
met by letting neighbouring threads run along the dimension in which it is contiguous.
"""

from __future__ import annotations

from torch_forge.generation.templates.cuda_plan import (
    Launch,
    Vectors,
    pointwise_launches,
    vectors,
)
from torch_forge.generation.templates.cuda_source import (
    aliases,
    config,
    dims_product,
    fallback,
    fill,
    largest_moved,
    preamble,
)
from torch_forge.generation.templates.cuda_tile import Tile
from torch_forge.generation.templates.facts import Job, division_params, names_for, title
from torch_forge.generation.templates.forms import row_form
from torch_forge.generation.templates.lanes import crossing
from torch_forge.generation.templates.schedule import live
from torch_forge.generation.templates.writer import Writer, entry, header
from torch_forge.records.kernels import Candidate
from torch_forge.records.program import Part


def pointwise(job: Job) -> list[Candidate]:
    """With the inner sizes and strides compiled in, then for any sizes."""
    inner = {p: job.size(p) for part in job.lowered.program.parts for p in part.outer[1:]}
    for part in job.lowered.program.parts:
        inner |= {p: job.size(p) for p in division_params(part.body)}
    outermost = {part.outer[0] for part in job.lowered.program.parts if part.outer}
    inner = {p: v for p, v in sorted(inner.items()) if p not in outermost}
    return [_pointwise(job, statics) for statics in ([inner, {}] if inner else [{}])]


def _pointwise(job: Job, statics: dict[str, int]) -> Candidate:
    parts = [row_form(part) for part in job.lowered.program.parts]
    exact = parts[0].row if len(parts) == 1 and parts[0].outer else None
    wide = vectors(parts, job.tensor_dtypes, statics, exact)
    launches = pointwise_launches(wide[0].narrower(largest_moved(job, parts, wide)))
    w = Writer()
    w.lines(*header(title(job, "pointwise"), job.index_bits, job.lowered, statics))
    preamble(w, job, parts, statics, divisors=True)
    for k, (part, v) in enumerate(zip(parts, wide, strict=True)):
        _pointwise_part(w, job, part, v, k, statics)
        w.line()
    _pointwise_kernel(w, len(parts))
    w.line()
    _pointwise_launch(w, job, parts, wide, launches, statics)
    return job.candidate("pointwise", w.text(), tuple(config(job, launch) for launch in launches), statics)


def _pointwise_part(w: Writer, job: Job, part: Part, wide: Vectors, k: int, statics: dict[str, int]) -> None:
    """The device function for one iteration space; ``block`` counts from its own first block."""
    body = live(part.body)
    names = names_for(body, job.tensor_dtypes, narrow=job.index_bits == 32)
    flat = not part.outer
    tile = Tile(job, part, names, wide.lanes, rows_vary=True, flat=flat)
    index = tile.index_type
    length = part.row or "1"
    first = f"(({index}(block) * kVectors + j) * kThreads + threadIdx.x) * kWidth"
    if flat:
        tile.position = (
            f"const {index} row0 = {first};",
            f"const int count = int({length} - row0 < kWidth ? {length} - row0 : kWidth);",
        )
        tile.guard = f"row0 < {length}"
    else:
        crossed = crossing(part, job.size)
        order = [*range(len(part.outer)), ROW_PLACE] if crossed is None else _crossed_order(part, crossed)
        tile.position = _position(job, part, statics, order, first)
        tile.guard = f"{_variable(order[0])} < {_size(part, order[0])}"
    w.line("template <int kThreads, int kWidth, int kVectors>")
    with w.block(f"static __device__ __forceinline__ void part{k}(const Args& a, int block)"):
        inner = Writer()
        loads = tile.hoistable(body)
        tile.declare(inner, loads)
        tile.load(inner, body, loads, names)
        tile.compute(inner, body, names)
        aliases(w, job, inner, statics)


ROW_PLACE = -1
"""Stands for the row variable in an order of loop variables."""


def _crossed_order(part: Part, crossed: int) -> list[int]:
    """Neighbouring threads along the dimension in which the input is contiguous, each with a vector of the result's row."""
    return [*(k for k in range(len(part.outer)) if k != crossed), ROW_PLACE, crossed]


def _variable(place: int) -> str:
    return "row0" if place == ROW_PLACE else f"d{place}"


def _size(part: Part, place: int) -> str:
    assert part.row is not None
    return part.row if place == ROW_PLACE else part.outer[place]


def _position(job: Job, part: Part, statics: dict[str, int], order: list[int], first: str) -> tuple[str, ...]:
    """From a vector's number to its loop variables; the last of ``order`` varies fastest.

    Elements are numbered where the row varies fastest, so that a vector is one step; vectors are where it does not.
    """
    index = f"int{job.index_bits}_t"
    by_vectors = order[-1] != ROW_PLACE
    lines = [f"{index} rest = {first.removesuffix(' * kWidth') if by_vectors else first};"]
    for place in reversed(order[1:]):
        size, variable, width = _size(part, place), _variable(place), ""
        known = size in statics or job.index_bits == 64
        quotient = f"rest / {size}" if known else f"forge_quotient(rest, a.{size}_divisor)"
        if by_vectors and place == ROW_PLACE:
            size, width = f"({size} / kWidth)", " * kWidth"
            quotient = f"rest / {size}"
        digit = f"rest - after_{variable} * {size}"
        lines.append(f"const {index} after_{variable} = {quotient};")
        lines.append(f"const {index} {variable} = {f'({digit}){width}' if width else digit};")
        lines.append(f"rest = after_{variable};")
    outermost = "rest * kWidth" if by_vectors and order[0] == ROW_PLACE else "rest"
    return (*lines, f"const {index} {_variable(order[0])} = {outermost};")


def _pointwise_kernel(w: Writer, parts: int) -> None:
    w.line("template <int kThreads, int kWidth, int kVectors>")
    with w.block("__global__ void __launch_bounds__(kThreads) pointwise_kernel(const __grid_constant__ Args a)"):
        if parts == 1:
            w.line("part0<kThreads, kWidth, kVectors>(a, int(blockIdx.x));")
            return
        w.line("int block = int(blockIdx.x);")
        for k in range(parts):
            w.line(f"if (block < a.blocks{k}) return part{k}<kThreads, kWidth, kVectors>(a, block);")
            w.line(f"block -= a.blocks{k};")


def _pointwise_launch(
    w: Writer, job: Job, parts: list[Part], wide: list[Vectors], launches: list[Launch], statics: dict[str, int]
) -> None:  # fmt: skip
    w.line("template <int kThreads, int kWidth, int kVectors>")
    with w.block("static int launch(Args& a, const int64_t* dims, void* stream)"):
        w.line("constexpr int64_t tile = int64_t(kThreads) * kWidth * kVectors;")
        w.line("int64_t blocks = 0;")
        for k, part in enumerate(parts):
            numel = dims_product(job, [p for p in (*part.outer, part.row) if p])
            w.line(f"const int64_t blocks{k} = ({numel} + tile - 1) / tile;")
            w.line(f"blocks += blocks{k};")
            if len(parts) > 1:
                w.line(f"a.blocks{k} = int(blocks{k});")
        w.line("return forge_enqueue(pointwise_kernel<kThreads, kWidth, kVectors>, blocks, kThreads, a, stream);")
    w.line()
    with entry(w):
        w.line("Args a;")
        fill(w, job, parts, statics, divisors=True)
        must_divide = [part.row for part in parts if part.outer]
        fallback(w, job, parts, wide, launches, statics, must_divide)
        with w.block("switch (config)"):
            for k, launch in enumerate(launches):
                w.line(f"case {k}: return launch<{launch.threads}, {launch.width}, {launch.vectors}>(a, dims, stream);")
        w.line("return FORGE_BAD_CONFIG;")
