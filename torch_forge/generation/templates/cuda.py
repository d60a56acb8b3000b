"""The CUDA templates: ``pointwise``, ``row`` (a row in registers) and ``row_stream`` (a row too long for that).

One kernel template per source, written once and instantiated for each config. A config with vector accesses checks
at launch that pointers and strides allow them and falls back to config 0, so every config is valid for any parameters.
"""

from __future__ import annotations

from torch_forge.generation.templates.cpu_loops import row_form
from torch_forge.generation.templates.cuda_plan import Launch, Vectors, pointwise_launches, row_launches, stream_launches, vectors
from torch_forge.generation.templates.cuda_tile import Tile
from torch_forge.generation.templates.expressions import REGISTER, STORAGE, Names, c_name, convert, index_text, literal
from torch_forge.generation.templates.facts import Job, division_params, names_for, params_of, title
from torch_forge.generation.templates.folds import CUDA_FOLD, accumulator_type, identity, is_arg
from torch_forge.generation.templates.schedule import Keeping, Schedule, Stage, live, name_of, schedule, uses
from torch_forge.generation.templates.terms import Step
from torch_forge.generation.templates.writer import Writer, entry, header
from torch_forge.records.kernels import Candidate, Config
from torch_forge.records.program import Index, Load, Op, Part, Reduce, Scan, Statement, Store
from torch_forge.records.tensors import DTYPES

ROW: Index = ("row",)
DEAR = 8
"""A value at least this many additions dear is kept in registers rather than computed again."""
PREFETCH_BYTES = 4
"""Inputs needed only by later stages are loaded at the start if they take no more than this per element."""
IN_REGISTERS = Keeping(across_passes=True, worth=lambda cost, loads: cost >= DEAR or loads > 1)
STREAMED = Keeping(across_passes=False, worth=lambda cost, loads: cost >= DEAR or loads > 1)


# -- row programs -------------------------------------------------------------------------------------------------------


def row(job: Job) -> list[Candidate]:
    """The register kernel where a row fits, then the streaming one."""
    found = [_register_row(job), _stream_row(job)]
    return [c for c in found if c is not None]


def _register_row(job: Job) -> Candidate | None:
    part = job.lowered.program.parts[0]
    assert part.row is not None
    statics = {p: job.size(p) for p in sorted({part.row, *division_params(part.body)})}
    plan = schedule(part, job.tensor_dtypes, IN_REGISTERS)
    assert plan is not None, "registers keep everything"
    wide = vectors([part], job.tensor_dtypes, statics, part.row)[0]
    n, rows = job.size(part.row), job.outer_numel(part)
    launches = row_launches(n, wide.narrower(_largest(job, [part], [wide])), _live_bytes(job, plan), rows, job.device.units)
    if not launches:
        return None
    return _RowSource(job, part, plan, wide, statics, launches, streamed=False).candidate()


def _stream_row(job: Job) -> Candidate | None:
    part = job.lowered.program.parts[0]
    statics = {p: job.size(p) for p in sorted(division_params(part.body))}
    plan = schedule(part, job.tensor_dtypes, STREAMED)
    if plan is None:
        return None
    wide = vectors([part], job.tensor_dtypes, statics, part.row)[0]
    launches = stream_launches(wide.narrower(_largest(job, [part], [wide])))
    return _RowSource(job, part, plan, wide, statics, launches, streamed=True).candidate()


def _largest(job: Job, parts: list[Part], wide: list[Vectors]) -> int:
    """Bytes of the largest element that is moved in vectors."""
    return max((DTYPES[job.tensor_dtypes[t]].nbytes for t in _vector_tensors(parts, wide)), default=4)


def _live_bytes(job: Job, plan: Schedule) -> int:
    """Bytes per element that a thread holds at the worst moment: inputs, kept values, running scans."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    size: dict[str, int] = {}
    loads = {s.name for stage in plan.stages for s in stage.body if isinstance(s, Load)}
    for k, stage in enumerate(plan.stages):
        for s in stage.body:
            if isinstance(s, Load):
                size[s.name] = DTYPES[job.tensor_dtypes[s.tensor]].nbytes
                first.setdefault(s.name, k)
                last[s.name] = k
            elif isinstance(s, Op) and s.name in stage.keeps:
                size[s.name] = DTYPES[s.dtype].nbytes
                first[s.name] = k
        for name in stage.reads:
            last[name] = k
    scans = 4 * sum(len(stage.scans) for stage in plan.stages)
    worst = 4
    for k in range(len(plan.stages)):
        # Element by element, what a stage keeps takes the place of what it used for the last time.
        before = sum(size[n] for n in size if (first[n] < k or n in loads) and first[n] <= k <= last.get(n, k))
        after = sum(size[n] for n in size if first[n] <= k < last.get(n, k))
        worst = max(worst, before, after)
    return worst + scans


class _RowSource:
    """Writes one row kernel."""

    def __init__(
        self, job: Job, part: Part, plan: Schedule, wide: Vectors, statics: dict[str, int], launches: list[Launch], *, streamed: bool
    ) -> None:  # fmt: skip
        self.job, self.part, self.plan, self.wide, self.statics, self.launches = job, part, plan, wide, statics, launches
        self.streamed = streamed
        self.body = live(part.body)
        self.names = names_for(self.body, job.tensor_dtypes, narrow=job.index_bits == 32)
        self.tile = Tile(job, part, self.names, wide.lanes, rows_vary=False, flat=False)
        self.tile.position = (f"const {self.tile.index_type} row0 = {'tile + ' if streamed else ''}(j * kThreads + t) * kWidth;",)
        self.tile.guard = f"row0 < {part.row}" if streamed else f"kWhole || row0 < {part.row}"
        self.tile.store_guard = "" if streamed else "alive"

    def candidate(self) -> Candidate:
        template = "row_stream" if self.streamed else "row"
        w = Writer()
        w.lines(*header(title(self.job, template), self.job.index_bits, self.job.lowered, self.statics))
        preamble(w, self.job, [self.part], self.statics)
        self._kernel(w)
        w.line()
        self._launch(w)
        configs = tuple(config(self.job, launch) for launch in self.launches)
        return self.job.candidate(template, w.text(), configs, self.statics)

    def _kernel(self, w: Writer) -> None:
        threads = "kThreads" if self.streamed else "kThreads * kRows"
        w.line(f"template <int kThreads, int kWidth, int kVectors{'' if self.streamed else ', int kRows'}>")
        with w.block(f"__global__ void __launch_bounds__({threads}) row_kernel(const __grid_constant__ Args a)"):
            inner = Writer()
            self._place(inner)
            scope = self.names.copy()
            self._declare(inner)
            for pass_stages in self._passes():
                self._pass(inner, pass_stages, scope)
            for s in self.plan.row_end:
                self.tile.row_statement(inner, s, scope, self._once())
            aliases(w, self.job, inner, self.statics)

    def _place(self, w: Writer) -> None:
        """Which row this thread works on."""
        index = self.tile.index_type
        w.line("const int t = threadIdx.x % kThreads;")
        if self.streamed:
            w.line(f"{index} rest = blockIdx.x;")
        else:
            w.line(f"constexpr bool kWhole = int64_t(kThreads) * kWidth * kVectors == {self.part.row};")
            w.line(f"const {index} task = {index}(blockIdx.x) * kRows + threadIdx.x / kThreads;")
            w.line("// A row past the end is computed as the last one once more and not stored: its warp is needed for shuffles.")
            w.line("const bool alive = kRows == 1 || task < a.rows;")
            w.line(f"{index} rest = alive ? task : {index}(a.rows - 1);")
        decompose(w, self.part, index)

    def _once(self) -> str:
        return "t == 0" if self.streamed else "t == 0 && alive"

    def _passes(self) -> list[list[Stage]]:
        passes: dict[int, list[Stage]] = {}
        for stage in self.plan.stages:
            passes.setdefault(stage.position[0], []).append(stage)
        return [passes[k] for k in sorted(passes)]

    def _declare(self, w: Writer) -> None:
        """The registers of every input; a streaming kernel declares them tile by tile."""
        loads: dict[str, Load] = {}
        for stage in () if self.streamed else self.plan.stages:
            loads |= {s.name: s for s in self.tile.hoistable(stage.body)}
        self.tile.declare(w, list(loads.values()))

    def _late(self, stage: Stage) -> list[tuple[tuple[Statement, ...], list[Load]]]:
        """Loads of later stages that may go with the first stage's."""
        first = self.plan.stages[0]
        if self.streamed or stage is not first:
            return []
        known = {name_of(s) for s in first.row_body}
        found = []
        for later in self.plan.stages[1:]:
            ready = [s for s in self.tile.hoistable(later.body) if self._ready(s, later, known)]
            found += [(later.body, ready)] if ready else []
        size = sum(DTYPES[self.job.tensor_dtypes[s.tensor]].nbytes for _, loads in found for s in loads if s.name not in self.tile.loaded)
        return found if size <= PREFETCH_BYTES else []

    def _ready(self, s: Load, stage: Stage, known: set[str | None]) -> bool:
        """Whether all that a load's address needs is known before the first stage."""
        waiting, local = [s], {name_of(b): b for b in stage.body}
        while waiting:
            current = waiting.pop()
            for u in uses(current):
                if u in local:
                    waiting.append(local[u])  # type: ignore[arg-type]
                elif u not in known:
                    return False
        return True

    def _pass(self, w: Writer, stages: list[Stage], scope: Names) -> None:
        for s in stages[0].row_body:
            self.tile.row_statement(w, s, scope, self._once())
        reduces = [r for stage in stages for r in stage.reduces]
        for r in reduces:
            w.line(f"{accumulator_type(r)} {c_name(r.name)}_fold = {identity(r, accumulator_type(r))};")
            if is_arg(r):
                w.line(f"{self.tile.index_type} {c_name(r.name)}_fold_at = {'INT32_MAX' if self.job.index_bits == 32 else 'INT64_MAX'};")
        for scan in (s for stage in stages for s in stage.scans):
            self._open_scan(w, scan)
        self._share_divisors(w, stages, scope)
        if self.streamed:
            index = self.tile.index_type
            with w.block(f"for ({index} tile = 0; tile < {self.part.row}; tile += kThreads * kWidth * kVectors)"):
                self.tile.loaded = set()
                for stage in stages:
                    self._stage(w, stage, stages, scope)
        else:
            for stage in stages:
                self._stage(w, stage, stages, scope)
        if reduces:
            self._fold(w, reduces, scope)

    def _stage(self, w: Writer, stage: Stage, stages: list[Stage], scope: Names) -> None:
        if len(self.plan.stages) > 1:
            w.line(f"// Stage {self.plan.stages.index(stage) + 1} of {len(self.plan.stages)}.")
        if stage is not stages[0]:
            for s in stage.row_body:
                self.tile.row_statement(w, s, scope, self._once())
        loads = [s for s in self.tile.hoistable(stage.body) if s.name not in self.tile.loaded]
        if self.streamed:
            self.tile.declare(w, loads)
        self.tile.load(w, stage.body, loads, scope)
        for body, late in self._late(stage):
            self.tile.load(w, body, [s for s in late if s.name not in self.tile.loaded], scope)
        for name in stage.keeps:
            w.line(f"{self._kept_type(name)} {c_name(name)}_kept[kVectors][kWidth];")
        self.tile.compute(
            w, stage.body, scope, reads=tuple(self._definition(n) for n in stage.reads), keeps=stage.keeps,
            reduces=stage.reduces, scans=stage.scans,
        )  # fmt: skip
        for scan in stage.scans:
            c, ctype = c_name(scan.name), REGISTER[scan.compute]
            start = literal(0 if scan.fn == "sum" else 1, ctype)
            w.line(f"forge_scan_threads<kThreads, {CUDA_FOLD[scan.fn]}>({c}_before, {start}, {c}_carry, {c}_warps);")

    def _kept_type(self, name: str) -> str:
        return STORAGE[self.names.dtype[name]]

    def _definition(self, name: str) -> Statement:
        return next(s for s in self.body if name_of(s) == name)

    def _open_scan(self, w: Writer, scan: Scan) -> None:
        c, ctype = c_name(scan.name), REGISTER[scan.compute]
        w.line(f"__shared__ {ctype} {c}_warps[kVectors * ForgeTeam<kThreads>::kWarps];")
        w.line(f"{ctype} {c}_carry = {literal(0 if scan.fn == 'sum' else 1, ctype)};")

    def _share_divisors(self, w: Writer, stages: list[Stage], scope: Names) -> None:
        """Inverses of the per-row float divisors of these stages, once per row."""
        for s in (s for stage in stages for s in stage.body):
            if not isinstance(s, Op) or s.fn != "div" or s.compute not in ("float32", "float16", "bfloat16"):
                continue
            divisor = s.args[1]
            if isinstance(divisor, str) and self.wide.lanes.level[divisor] == 0 and divisor not in self.tile.shared:
                name = f"{c_name(divisor)}_shared"
                w.line(f"const ForgeShared {name} = forge_share({scope.as_type(divisor, 'float')});")
                self.tile.shared[divisor] = name

    def _fold(self, w: Writer, reduces: list[Reduce], scope: Names) -> None:
        """Across the row's threads: within warps, then, with one barrier for all of them, across warps."""
        for r in reduces:
            fold = f"{c_name(r.name)}_fold"
            if is_arg(r):
                w.line(f"forge_arg_lanes<kThreads, {CUDA_FOLD[r.fn]}>({fold}, {fold}_at);")
            else:
                w.line(f"{fold} = forge_fold_lanes<kThreads, {CUDA_FOLD[r.fn]}>({fold});")
        with w.block("if (kThreads > 32)"):
            for r in reduces:
                fold, ctype = f"{c_name(r.name)}_fold", accumulator_type(r)
                w.line(f"__shared__ {ctype} {fold}_warps[ForgeTeam<kThreads>::kWarps];")
                w.line(f"if (t % 32 == 0) {fold}_warps[t / 32] = {fold};")
                if is_arg(r):
                    w.line(f"__shared__ {self.tile.index_type} {fold}_at_warps[ForgeTeam<kThreads>::kWarps];")
                    w.line(f"if (t % 32 == 0) {fold}_at_warps[t / 32] = {fold}_at;")
            w.line("__syncthreads();")
            for r in reduces:
                fold, ctype = f"{c_name(r.name)}_fold", accumulator_type(r)
                if is_arg(r):
                    w.line(f"forge_arg_warps<kThreads, {CUDA_FOLD[r.fn]}>({fold}_warps, {fold}_at_warps, {fold}, {fold}_at);")
                else:
                    w.line(f"{fold} = forge_fold_warps<kThreads, {CUDA_FOLD[r.fn]}>({fold}_warps, {identity(r, ctype)});")
        for r in reduces:
            name = c_name(r.name)
            value = f"int64_t({name}_fold_at)" if is_arg(r) else convert(f"{name}_fold", accumulator_type(r), scope.ctype(r.name))
            w.line(f"const {scope.ctype(r.name)} {name} = {value};")
            scope.text[r.name] = name

    def _launch(self, w: Writer) -> None:
        with entry(w):
            w.line("Args a;")
            fill(w, self.job, [self.part], self.statics)
            w.line(f"const int64_t rows = {' * '.join(f'dims[{self.job.lowered.program.params.index(p)}]' for p in self.part.outer) or '1'};")
            w.line("if (rows == 0) return FORGE_OK;")
            if not self.streamed:
                w.line("a.rows = rows;")
            fallback(w, self.job, [self.part], [self.wide], self.launches, self.statics, [self.part.row] if self.streamed else [])
            with w.block("switch (config)"):
                for k, launch in enumerate(self.launches):
                    last = "" if self.streamed else f", {launch.rows}"
                    kernel = f"row_kernel<{launch.threads}, {launch.width}, {launch.vectors}{last}>"
                    blocks = "rows" if launch.rows == 1 else f"(rows + {launch.rows - 1}) / {launch.rows}"
                    w.line(f"case {k}: return forge_enqueue({kernel}, {blocks}, {launch.threads * launch.rows}, a, stream);")
            w.line("return FORGE_BAD_CONFIG;")


# -- pointwise programs -----------------------------------------------------------------------------------------------------


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
    launches = pointwise_launches(wide[0].narrower(_largest(job, parts, wide)))
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
        tile.position = (f"{index} rest = {first};", *_decompose_lines(job, part, statics, index))
        tile.guard = f"d0 < {part.outer[0]}"
    w.line("template <int kThreads, int kWidth, int kVectors>")
    with w.block(f"static __device__ __forceinline__ void part{k}(const Args& a, int block)"):
        inner = Writer()
        loads = tile.hoistable(body)
        tile.declare(inner, loads)
        tile.load(inner, body, loads, names)
        tile.compute(inner, body, names)
        aliases(w, job, inner, statics)


def _decompose_lines(job: Job, part: Part, statics: dict[str, int], index: str) -> list[str]:
    """From a linear element number to the loop variables, the last of which is the row variable."""
    lines = []
    sizes = [*part.outer, part.row]
    for k in reversed(range(1, len(sizes))):
        size, variable = sizes[k], "row0" if k == len(sizes) - 1 else f"d{k}"
        fast = job.index_bits == 32 and size not in statics
        quotient = f"forge_quotient(rest, a.{size}_divisor)" if fast else f"rest / {size}"
        lines += [f"const {index} next{k} = {quotient}, {variable} = rest - next{k} * {size};", f"rest = next{k};"]
    return [*lines, f"const {index} d0 = rest;"]


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
    params = job.lowered.program.params
    w.line("template <int kThreads, int kWidth, int kVectors>")
    with w.block("static int launch(Args& a, const int64_t* dims, void* stream)"):
        w.line("constexpr int64_t tile = int64_t(kThreads) * kWidth * kVectors;")
        w.line("int64_t blocks = 0;")
        for k, part in enumerate(parts):
            sizes = [p for p in (*part.outer, part.row) if p]
            numel = " * ".join(f"dims[{params.index(p)}]" for p in sizes) or "1"
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


# -- shared pieces --------------------------------------------------------------------------------------------------------------


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
    checks = [f"forge_aligned(a.{job.pointer(t)}, {_vector_bytes(job, t)})" for t in _vector_tensors(parts, wide)]
    for expression in dict.fromkeys([m for v in wide for m in v.lanes.multiples] + [("p", p) for p in must_divide if p and p not in statics]):
        text = index_text(_host(job, expression, statics), {}, Names(), "int64_t")
        checks.append(f"({text}) % width == 0")
    if checks:
        w.line("const bool fits = " + checks[0] + "".join(f"\n      && {check}" for check in checks[1:]) + ";")
        w.line("if (width > 1 && !fits) config = 0;  // vectors would be misaligned")


def _vector_tensors(parts: list[Part], wide: list[Vectors]) -> list[int]:
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
