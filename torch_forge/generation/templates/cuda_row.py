"""The CUDA templates for row programs: ``row`` holds a row in registers, ``row_stream`` runs along rows of any length.

One kernel template per source, instantiated for each config. Short rows get a few lanes each and share a block; long
ones get a block; whatever is longer than the registers of a block is read again in every pass, from L2 as a rule.
"""

from __future__ import annotations

from torch_forge.generation.templates.cuda_plan import (
    Launch,
    Vectors,
    row_launches,
    stream_launches,
    vectors,
)
from torch_forge.generation.templates.cuda_source import (
    aliases,
    config,
    decompose,
    dims_product,
    fallback,
    fill,
    largest_moved,
    preamble,
)
from torch_forge.generation.templates.cuda_tile import Tile
from torch_forge.generation.templates.expressions import REGISTER, STORAGE, Names, c_name, convert, literal
from torch_forge.generation.templates.facts import Job, division_params, names_for, title
from torch_forge.generation.templates.folds import CUDA_FOLD, accumulator_type, identity, is_arg
from torch_forge.generation.templates.schedule import Keeping, Schedule, Stage, live, name_of, schedule, uses
from torch_forge.generation.templates.writer import Writer, entry, header
from torch_forge.records.kernels import Candidate
from torch_forge.records.program import Load, Op, Part, Reduce, Scan, Statement
from torch_forge.records.tensors import DTYPES

DEAR = 8
"""A value at least this many additions dear is kept in registers rather than computed again."""
PREFETCH_BYTES = 4
"""Inputs needed only by later stages are loaded at the start if they take no more than this per element."""
IN_REGISTERS = Keeping(across_passes=True, worth=lambda cost, loads: cost >= DEAR or loads > 1)
STREAMED = Keeping(across_passes=False, worth=lambda cost, loads: cost >= DEAR or loads > 1)


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
    launches = row_launches(
        n, wide.narrower(largest_moved(job, [part], [wide])), _live_bytes(job, plan), rows, job.device.units
    )
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
    launches = stream_launches(wide.narrower(largest_moved(job, [part], [wide])))
    return _RowSource(job, part, plan, wide, statics, launches, streamed=True).candidate()


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
        self, job: Job, part: Part, plan: Schedule, wide: Vectors, statics: dict[str, int],
        launches: list[Launch], *, streamed: bool
    ) -> None:  # fmt: skip
        self.job, self.part, self.plan, self.wide, self.statics, self.launches = job, part, plan, wide, statics, launches
        self.streamed = streamed
        self.body = live(part.body)
        self.names = names_for(self.body, job.tensor_dtypes, narrow=job.index_bits == 32)
        self.tile = Tile(job, part, self.names, wide.lanes, rows_vary=False, flat=False)
        self.tile.position = (
            f"const {self.tile.index_type} row0 = {'tile + ' if streamed else ''}(j * kThreads + t) * kWidth;",
        )
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
            w.line("// A row past the end is computed as the last one again and not stored: shuffles need its threads.")
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
        size = sum(
            DTYPES[self.job.tensor_dtypes[s.tensor]].nbytes
            for _, loads in found
            for s in loads
            if s.name not in self.tile.loaded
        )
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
                w.line(f"{self.tile.index_type} {c_name(r.name)}_fold_at = INT{self.job.index_bits}_MAX;")
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
                    w.line(
                        f"forge_arg_warps<kThreads, {CUDA_FOLD[r.fn]}>({fold}_warps, {fold}_at_warps, {fold}, {fold}_at);"
                    )
                else:
                    w.line(f"{fold} = forge_fold_warps<kThreads, {CUDA_FOLD[r.fn]}>({fold}_warps, {identity(r, ctype)});")
        for r in reduces:
            name = c_name(r.name)
            value = (
                f"int64_t({name}_fold_at)"
                if is_arg(r)
                else convert(f"{name}_fold", accumulator_type(r), scope.ctype(r.name))
            )
            w.line(f"const {scope.ctype(r.name)} {name} = {value};")
            scope.text[r.name] = name

    def _launch(self, w: Writer) -> None:
        with entry(w):
            w.line("Args a;")
            fill(w, self.job, [self.part], self.statics)
            w.line(f"const int64_t rows = {dims_product(self.job, self.part.outer)};")
            w.line("if (rows == 0) return FORGE_OK;")
            if not self.streamed:
                w.line("a.rows = rows;")
            fallback(
                w, self.job, [self.part], [self.wide], self.launches, self.statics, [self.part.row] if self.streamed else []
            )
            with w.block("switch (config)"):
                for k, launch in enumerate(self.launches):
                    last = "" if self.streamed else f", {launch.rows}"
                    kernel = f"row_kernel<{launch.threads}, {launch.width}, {launch.vectors}{last}>"
                    blocks = "rows" if launch.rows == 1 else f"(rows + {launch.rows - 1}) / {launch.rows}"
                    w.line(f"case {k}: return forge_enqueue({kernel}, {blocks}, {launch.threads * launch.rows}, a, stream);")
            w.line("return FORGE_BAD_CONFIG;")
