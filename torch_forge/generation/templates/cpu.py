"""The CPU templates ``pointwise`` and ``row``: tasks over threads around the loops of ``cpu_loops``.

A pointwise part is a row part whose last dimension is the row and whose long rows are split into tasks; the rows of
a row program are never split, so no result depends on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable

from torch_forge.generation.templates.cpu_loops import CHUNK, RowLoops
from torch_forge.generation.templates.facts import Job, division_params, index_limit, names_for, params_of, title
from torch_forge.generation.templates.schedule import Stage, cost
from torch_forge.generation.templates.writer import Writer, header
from torch_forge.records.kernels import Candidate, Config
from torch_forge.records.program import CheckedIndex, Index, Load, Part, Store
from torch_forge.records.tensors import DTYPES

__all__ = ["index_limit", "pointwise", "row"]

STACK_BYTES = 64 << 10
"""Scratch rows up to this size live on the thread's stack."""
TASK = 16384
"""Elements of a long pointwise row that make one task."""
CROSSED_TASK = 16
"""The same where each stretch of the row is run through once per element of another dimension (``crossing``)."""


def pointwise(job: Job) -> list[Candidate]:
    """One candidate per choice of compiled-in parameters: inner sizes first, then none."""
    inner = {p: job.size(p) for part in job.lowered.program.parts for p in part.outer[1:]}
    for part in job.lowered.program.parts:
        inner |= {p: job.size(p) for p in division_params(part.body)}
    choices = [inner, {}] if inner else [{}]
    return [_candidate(job, "pointwise", statics) for statics in choices]


def row(job: Job) -> list[Candidate]:
    """One candidate, the row length compiled in."""
    part = job.lowered.program.parts[0]
    assert part.row is not None
    statics = {p: job.size(p) for p in sorted({part.row, *division_params(part.body)})}
    return [_candidate(job, "row", statics)]


def _candidate(job: Job, template: str, statics: dict[str, int]) -> Candidate:
    stream = _worth_streaming(job)
    w = Writer()
    plans = [
        RowLoops.plan(job, part, lambda body: names_for(body, job.tensor_dtypes, narrow=job.index_bits == 32), stream=stream)
        for part in job.lowered.program.parts
    ]
    w.lines(*header(title(job, template), job.index_bits, job.lowered, statics))
    w.lines('#include "forge.h"', '#include "forge_math.h"', "")
    if any(stage.reduces for plan in plans for stage in plan.schedule.stages):
        w.line(f"constexpr int kLanes = {max(plan.width for plan in plans)};  // partial results of a reduction")
    if stream:
        w.line(f"constexpr int64_t kChunk = {CHUNK};  // elements gathered before they are streamed")
    for name, value in statics.items():
        w.line(f"constexpr int64_t {name} = {value};")
    w.line()
    for k, plan in enumerate(plans):
        _part(w, job, plan, k, statics)
    _entry(w, len(plans), stream)
    configs = [Config({"stream": s}, job.align_bytes) for s in ((0, 1) if stream else (0,))]
    return job.candidate(template, w.text(), tuple(configs), statics)


def _worth_streaming(job: Job) -> bool:
    """Whether the results alone fill half the last-level cache."""
    written = sum(s.numel * s.itemsize for s in job.problem.graph.output_specs)
    return written * 2 > job.device.l2_bytes > 0


def _part(w: Writer, job: Job, plan: RowLoops, k: int, statics: dict[str, int]) -> None:
    """Two functions: a range of tasks on one thread, and the whole part on a team of threads.

    The first takes all it needs by value: inside an OpenMP region everything would be read through a shared record,
    which a store of int8 might change for all that the compiler knows, and nothing would be vectorised.
    """
    part = plan.part
    splits = not any(s.reduces or s.scans for s in plan.schedule.stages)
    tensors, params = _arguments(job, plan, statics)
    w.line("template <bool kStream>")
    head = f"static int tasks{k}("
    arguments = [f"{_pointer_type(job, t)} __restrict {job.pointer(t)}" for t in tensors] + [f"int64_t {p}" for p in params]
    for line in _wrapped(head, [*arguments, "int64_t first", "int64_t last"], ") {"):
        w.line(line)
    with w.body():
        w.line("int failed = 0;")
        _scratch(w, job, plan)
        if splits:
            w.line(f"const int64_t spans = {_spans(plan)};")
        with w.block("for (int64_t task = first; task < last; ++task)"):
            _task(w, plan, splits=splits)
        if plan.streamed:
            w.line("if (kStream) forge_stream_end();")
        w.line("return failed;")
    w.line()
    w.line("template <bool kStream>")
    with w.block(f"static int part{k}(const ForgeTensor* in, const ForgeTensor* out, const int64_t* dims, int64_t threads)"):
        for t in tensors:
            tensor = job.lowered.program.tensors[t]
            w.line(
                f"{_pointer_type(job, t)} const {job.pointer(t)} = "
                f"static_cast<{_pointer_type(job, t)}>({tensor.role}[{tensor.position}].data);"
            )
        for p in sorted(
            {*params, *part.outer, *([part.row] if part.row else []), *_checked_sizes(part)} - set(statics), key=_order(job)
        ):
            w.line(f"const int64_t {p} = dims[{job.lowered.program.params.index(p)}];")
        w.line(f"const int64_t rows = {' * '.join(part.outer) or '1'};")
        w.line(f"if (rows == 0{f' || {part.row} == 0' if splits and part.row else ''}) return FORGE_OK;")
        crossed = f" / {part.outer[plan.crossed]}" if plan.crossed is not None else ""
        w.line(f"const int64_t tasks = rows{crossed} * ({_spans(plan)});" if splits else "const int64_t tasks = rows;")
        for size in _checked_sizes(part):
            w.line(f"if ({size} == 0) return FORGE_INDEX_ERROR;  // nothing can be indexed")
        w.line(f"const int team = forge_team(threads, tasks, rows * {part.row or '1'} * {_row_cost(job, plan)});")
        w.line("int failed = 0;")
        w.line("#pragma omp parallel for num_threads(team) if (team > 1) schedule(static, 1) reduction(| : failed)")
        with w.block("for (int member = 0; member < team; ++member)"):
            passed = [job.pointer(t) for t in tensors] + list(params)
            call = ", ".join([*passed, "tasks * member / team", "tasks * (member + 1) / team"])
            w.line(f"failed |= tasks{k}<kStream>({call});")
        w.line("return failed ? FORGE_INDEX_ERROR : FORGE_OK;")
    w.line()


def _spans(plan: RowLoops) -> str:
    """How many tasks a pointwise row is cut into, in C."""
    length = TASK if plan.crossed is None else CROSSED_TASK
    return f"({plan.part.row} + {length - 1}) / {length}" if plan.part.row else "1"


def _order(job: Job) -> Callable[[str], int]:
    return job.lowered.program.params.index


def _arguments(job: Job, plan: RowLoops, statics: dict[str, int]) -> tuple[list[int], list[str]]:
    """Tensors and run-time parameters that the part uses."""
    statements = [s for stage in plan.schedule.stages for s in (*stage.row_body, *stage.body)] + list(plan.schedule.row_end)
    tensors = sorted({s.tensor for s in statements if isinstance(s, (Load, Store))})
    part = plan.part
    inner = part.outer[1:] if plan.crossed != 0 else part.outer
    used = params_of(Part(inner, part.row, tuple(statements))) | (
        {part.outer[0]} & params_of(Part((), None, tuple(statements))) if part.outer else set()
    )
    return tensors, [p for p in job.lowered.program.params if p in used and p not in statics]


def _pointer_type(job: Job, tensor: int) -> str:
    const = "const " if job.lowered.program.tensors[tensor].role == "in" else ""
    return f"{const}{job.storage(tensor)}*"


def _wrapped(head: str, items: list[str], tail: str, width: int = 120) -> list[str]:
    """``head`` with the items after it, broken into lines that align."""
    lines, current = [], head
    for k, item in enumerate(items):
        piece = item + (", " if k + 1 < len(items) else tail)
        if len(current) + len(piece) > width and current != head:
            lines.append(current.rstrip())
            current = " " * len(head)
        current += piece
    return [*lines, current]


def _checked_sizes(part: Part) -> list[str]:
    """Sizes that data index into, where they are one parameter."""
    sizes: list[Index] = [s.size for s in part.body if isinstance(s, CheckedIndex)]
    return sorted({s[1] for s in sizes if isinstance(s, tuple) and s[0] == "p"})


def _row_cost(job: Job, plan: RowLoops) -> int:
    """Additions per element, over all stages."""
    return max(1, sum(_stage_cost(job, stage) for stage in plan.schedule.stages) // 4)


def _stage_cost(job: Job, stage: Stage) -> int:
    return sum(cost(s, job.tensor_dtypes) for s in stage.body) + len(stage.reduces) + 4 * len(stage.scans)


def _scratch(w: Writer, job: Job, plan: RowLoops) -> None:
    rows = plan.scratch()
    length = job.size(plan.part.row) if plan.part.row else 1
    small = sum(DTYPES[_element(t)].nbytes for _, t in rows) * length <= STACK_BYTES
    for name, ctype in rows:
        if small:
            w.line(f"alignas(64) {ctype} {name}[{plan.part.row} + 1];")
        else:
            w.line(f"const ForgeScratch<{ctype}> {name}_memory({plan.part.row});")
            w.line(f"{ctype}* const {name} = {name}_memory.data;")


def _element(ctype: str) -> str:
    return {"double": "float64", "float": "float32", "bool": "bool"}.get(ctype) or ctype.removesuffix("_t")


def _task(w: Writer, plan: RowLoops, *, splits: bool) -> None:
    """Which row, which part of it, then the loops."""
    outer, length = plan.part.outer, plan.part.row or "1"
    numbered = [k for k in range(len(outer)) if k != plan.crossed]
    number = "task / spans" if splits else "task"
    if len(numbered) == 1:
        w.line(f"const int64_t d{numbered[0]} = {number};")
    elif numbered:
        w.line(f"int64_t rest = {number};")
        for k in reversed(numbered[1:]):
            w.line(f"const int64_t d{k} = rest % {outer[k]};")
            w.line(f"rest /= {outer[k]};")
        w.line(f"const int64_t d{numbered[0]} = rest;")
    if not splits:
        w.line(f"constexpr int64_t begin = 0, end = {length};")
        plan.emit(w)
        return
    stretch = TASK if plan.crossed is None else CROSSED_TASK
    w.line(f"const int64_t begin = task % spans * {stretch};")
    w.line(f"const int64_t end = begin + {stretch} < {length} ? begin + {stretch} : {length};")
    if plan.crossed is None:
        plan.emit(w)
        return
    w.line("// A stretch of the row at a time, so that the cache lines read across it are used whole.")
    with w.block(f"for (int64_t d{plan.crossed} = 0; d{plan.crossed} < {outer[plan.crossed]}; ++d{plan.crossed})"):
        plan.emit(w)


def _entry(w: Writer, parts: int, stream: bool) -> None:
    w.line('extern "C" int forge_launch(const ForgeTensor* in, const ForgeTensor* out, const int64_t* dims, int64_t config,')
    with w.block("                            int64_t threads, void*, void*)"):
        w.line(f"if (config < 0 || config > {int(stream)}) return FORGE_BAD_CONFIG;")
        w.line("int status = FORGE_OK;")
        for k in range(parts):
            call = f"part{k}<true>(in, out, dims, threads)" if stream else ""
            plain = f"part{k}<false>(in, out, dims, threads)"
            w.line(f"if (status == FORGE_OK) status = {f'config == 1 ? {call} : {plain}' if stream else plain};")
        w.line("return status;")
