"""The CPU templates ``pointwise`` and ``row``: tasks over threads around the loops of ``cpu_loops``.

A pointwise part is a row part whose last dimension is the row and whose long rows are split into tasks; the rows of
a row program are never split, so no result depends on the number of threads.
"""

from __future__ import annotations

from torch_forge.generation.templates.cpu_loops import CHUNK, RowLoops
from torch_forge.generation.templates.facts import Job, division_params, index_limit, names_for, params_of, title
from torch_forge.generation.templates.schedule import Stage, cost
from torch_forge.generation.templates.writer import Writer, header
from torch_forge.records.kernels import Candidate, Config
from torch_forge.records.program import CheckedIndex, Index, Part
from torch_forge.records.tensors import DTYPES

__all__ = ["index_limit", "pointwise", "row"]

STACK_BYTES = 64 << 10
"""Scratch rows up to this size live on the thread's stack."""
TASK = 16384
"""Elements of a long pointwise row that make one task."""


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
    part, template = plan.part, "row" if any(s.reduces or s.scans for s in plan.schedule.stages) else "pointwise"
    w.line("template <bool kStream>")
    with w.block(f"static int part{k}(const ForgeTensor* in, const ForgeTensor* out, const int64_t* dims, int64_t threads)"):
        _arguments(w, job, plan, statics)
        w.line(f"const int64_t rows = {' * '.join(plan_sizes(part)) or '1'};")
        length = part.row or "1"
        w.line(f"const int64_t spans = {'1' if template == 'row' else f'({length} + {TASK - 1}) / {TASK}'};" if template != "row" else "const int64_t spans = 1;")
        w.line("const int64_t tasks = rows * spans;")
        w.line("if (tasks == 0) return FORGE_OK;")
        for size in _checked_sizes(part):
            w.line(f"if ({size} == 0) return FORGE_INDEX_ERROR;  // nothing can be indexed")
        w.line(f"const int team = forge_team(threads, tasks, rows * {length} * {_row_cost(job, plan)});")
        w.line("int failed = 0;")
        w.line("#pragma omp parallel num_threads(team) if (team > 1) reduction(| : failed)")
        with w.block(""):
            _scratch(w, job, plan)
            w.line("#pragma omp for schedule(static)")
            with w.block("for (int64_t task = 0; task < tasks; ++task)"):
                _task(w, plan, template)
            if plan.streamed:
                w.line("if (kStream) forge_stream_end();")
        w.line("return failed ? FORGE_INDEX_ERROR : FORGE_OK;")
    w.line()


def plan_sizes(part: Part) -> list[str]:
    """Names of the outer sizes."""
    return list(part.outer)


def _arguments(w: Writer, job: Job, plan: RowLoops, statics: dict[str, int]) -> None:
    """Tensor pointers and run-time parameters that the part uses."""
    used_params = params_of(plan.part)
    for i, p in enumerate(job.lowered.program.params):
        if p in used_params and p not in statics:
            w.line(f"const int64_t {p} = dims[{i}];")
    used_tensors = {t for stage in plan.schedule.stages for s in (*stage.row_body, *stage.body) if (t := getattr(s, "tensor", None)) is not None}
    used_tensors |= {t for s in plan.schedule.row_end if (t := getattr(s, "tensor", None)) is not None}
    for t in sorted(used_tensors):
        tensor = job.lowered.program.tensors[t]
        const = "const " if tensor.role == "in" else ""
        w.line(
            f"{const}{job.storage(t)}* __restrict const {job.pointer(t)} = "
            f"static_cast<{const}{job.storage(t)}*>({tensor.role}[{tensor.position}].data);"
        )


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


def _task(w: Writer, plan: RowLoops, template: str) -> None:
    """Which row, which part of it, then the loops."""
    outer = plan.part.outer
    length = plan.part.row or "1"
    if outer:
        w.line(f"int64_t rest = {'task' if template == 'row' else 'task / spans'};")
    for k in reversed(range(1, len(outer))):
        w.line(f"const int64_t d{k} = rest % {outer[k]};")
        w.line(f"rest /= {outer[k]};")
    if outer:
        w.line("const int64_t d0 = rest;")
    if template == "row":
        w.line(f"constexpr int64_t begin = 0, end = {length};")
    else:
        w.line(f"const int64_t begin = task % spans * {TASK};")
        w.line(f"const int64_t end = begin + {TASK} < {length} ? begin + {TASK} : {length};")
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
