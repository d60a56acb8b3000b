"""One row on the CPU: each stage of the schedule as loops that g++ vectorises.

Per-row values come first, then the loop over the row. Where a comparison of positions or a quotient would
change along the row, the row is cut there, so that inside a cut masks are constant and every access is plain.
Reductions run in a fixed number of lanes over blocks of the row, folded pairwise per block and added up in double:
the order is fixed, and the error no worse than eager's cascade.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch_forge.generation.templates.expressions import (
    REGISTER,
    Names,
    c_name,
    convert,
    index_text,
    literal,
    op_text,
    round_to,
    stored,
)  # fmt: skip
from torch_forge.generation.templates.facts import Job
from torch_forge.generation.templates.folds import (
    CPU_FOLD,
    accumulator_type,
    fold,
    identity,
    is_arg,
    total_type,
    truth_or_value,
)
from torch_forge.generation.templates.forms import periodic, row_form
from torch_forge.generation.templates.lanes import Lanes, Level, analyse, crossing, idle_positions
from torch_forge.generation.templates.schedule import Keeping, Schedule, Stage, live, name_of, schedule
from torch_forge.generation.templates.terms import ROW, Along, Step, atoms, terms
from torch_forge.generation.templates.writer import Writer
from torch_forge.records.program import CheckedIndex, Index, IndexValue, Load, Op, Part, Reduce, Scan, Statement, Store

BLOCK = 2048
"""Elements summed in lanes before the lanes are folded: at most 64 roundings in a chain with 32 lanes."""
CHUNK = 1024
"""Elements of a streamed store that are gathered in L1 first."""
RECOMPUTE_BELOW = 8
"""A value cheaper than this many additions is computed again rather than kept in the scratch row."""
MOST_CUTS = 6
CPU_KEEPING = Keeping(across_passes=True, worth=lambda cost, _: cost >= RECOMPUTE_BELOW)


@dataclass
class RowLoops:
    """Writes the loops over one row of a part."""

    job: Job
    part: Part
    """In row form, with its periods numbered."""
    period: Index | None
    names: Names
    schedule: Schedule
    lanes: Lanes
    width: int
    """Reduction lanes."""
    streamed: frozenset[int] = frozenset()
    """``id`` of the stores that have a streaming form."""
    crossed: int | None = None
    """The outer dimension that is run through inside each stretch of the row, or None."""

    @classmethod
    def plan(cls, job: Job, part: Part, names: Callable[[tuple[Statement, ...]], Names], *, stream: bool) -> RowLoops:
        """Analyse a part; ``stream``: also write the form that stores past the caches."""
        part, period = periodic(row_form(part))
        body = live(part.body)
        found = schedule(part, job.tensor_dtypes, CPU_KEEPING)
        assert found is not None, "a scratch row keeps everything"
        along = Along(ROW, 1, {})
        masked = any(isinstance(s, Load) and s.mask for s in body)
        lanes = analyse(body, along, any_bound=masked)
        if len(lanes.bounds) > MOST_CUTS:
            lanes = analyse(body, along)
        splits = not any(stage.reduces or stage.scans for stage in found.stages)
        crossed = crossing(part, job.size) if splits else None
        stream = stream and crossed is None
        last = found.stages[-1] if found.stages else None
        plain = stream and last is not None and not last.reduces and not last.scans
        streamed = frozenset(
            id(s)
            for s in (last.body if plain and last else ())
            if isinstance(s, Store) and lanes.pattern[id(s)].step is Step.ONE
        )
        length = job.size(part.row) if part.row else 1
        return cls(
            job,
            part,
            period,
            names(body),
            found,
            lanes,
            32 if length >= 256 else 16 if length >= 64 else 8,
            streamed,
            crossed,
        )

    # -- memory between stages -------------------------------------------------------------------------------

    def scratch(self) -> list[tuple[str, str]]:
        """(name, C type) of each scratch row."""
        kept = [(self._kept(v), self.names.ctype(v)) for stage in self.schedule.stages for v in stage.keeps]
        scans = [(self._kept(s.name), REGISTER[s.dtype]) for stage in self.schedule.stages for s in stage.scans]
        return kept + scans

    @staticmethod
    def _kept(value: str) -> str:
        return f"row_{c_name(value)}"

    # -- emission --------------------------------------------------------------------------------------------

    def emit(self, w: Writer) -> None:
        """All stages, over ``[begin, end)`` of the row; outer loop variables ``d0`` ... are in scope."""
        scope = self.names.copy()
        for number, stage in enumerate(self.schedule.stages, 1):
            for s in stage.row_body:
                self._statement(w, s, scope, "0")
            if len(self.schedule.stages) > 1:
                w.line(f"// Stage {number} of {len(self.schedule.stages)}.")
            self._stage(w, stage, scope)
        for s in self.schedule.row_end:
            self._statement(w, s, scope, "0")

    def _stage(self, w: Writer, stage: Stage, scope: Names) -> None:
        for reduce in stage.reduces:
            self._open_reduce(w, reduce)
        if any(self._level(s) is Level.GROUP for s in stage.body):
            with w.block("for (int64_t cut = begin, stop = end; cut < end; cut = stop, stop = end)"):
                for line in self._cut_lines(scope):
                    w.line(line)
                self._segment(w, stage, self._group_scope(w, stage, scope), "cut", "stop")
        else:
            self._segment(w, stage, scope.copy(), "begin", "end")
        for reduce in stage.reduces:
            self._close_reduce(w, reduce)
        for scan in stage.scans:
            self._scan(w, scan)

    # -- cutting the row -------------------------------------------------------------------------------------

    def _cut_lines(self, scope: Names) -> list[str]:
        """Statements that shorten ``stop`` to the next place where a group-level value changes."""
        lines = []
        for moving, bound in dict.fromkeys(self.lanes.bounds):
            rest = [t for t in terms(moving) if ROW not in t.atoms]
            where: Index = ("+", bound, *(("*", -t.coefficient, *(("p", p) for p in t.params), *t.atoms) for t in rest))
            known = all(a[0] != "v" or self.lanes.level[a[1]] is Level.ROW for a in atoms(where))
            assert known, "bounds are per-row values"
            lines.append(f"stop = forge_cut(cut, {index_text(where, self._variables('cut'), scope, 'int64_t')}, stop);")
        if self.period is not None:
            q = index_text(self.period, {}, scope, "int64_t")
            lines.append(f"stop = forge_cut(cut, (cut / ({q}) + 1) * ({q}), stop);")
        return lines

    def _group_scope(self, w: Writer, stage: Stage, scope: Names) -> Names:
        """Writes the group-level statements of a stage; positions inside them are those of the cut's start."""
        group = scope.copy()
        for s in stage.body:
            if self._level(s) is Level.GROUP:
                self._statement(w, s, group, "cut")
            elif isinstance(s, IndexValue):
                text = index_text(s.index, self._variables("cut"), group, "int64_t")
                group.text[s.name] = convert(f"({text})", "int64_t", group.ctype(s.name))
        for s in stage.body:
            if isinstance(s, IndexValue) and self._level(s) is Level.LANE:
                group.text[s.name] = scope.text[s.name]
        return group

    # -- loops over a cut ------------------------------------------------------------------------------------

    def _segment(self, w: Writer, stage: Stage, scope: Names, begin: str, end: str) -> None:
        for name in stage.reads:
            scope.text[name] = f"{self._kept(name)}[row]"
        if stage.reduces:
            self._blocked(w, stage, scope, begin, end)
        elif any(id(s) in self.streamed for s in stage.body):
            self._chunked(w, stage, scope, begin, end)
        else:
            w.line("#pragma omp simd")
            with w.block(f"for (int64_t row = {begin}; row < {end}; ++row)"):
                self._lane_body(w, stage, scope)

    def _chunked(self, w: Writer, stage: Stage, scope: Names, begin: str, end: str) -> None:
        """The plain loop in chunks; in the streaming form, contiguous results take the way through a small buffer."""
        stores = [s for s in stage.body if isinstance(s, Store) and id(s) in self.streamed]
        with w.block(f"for (int64_t chunk = {begin}; chunk < {end}; chunk += kChunk)"):
            w.line(f"const int64_t last = chunk + kChunk < {end} ? chunk + kChunk : {end};")
            for k, s in enumerate(stores):
                ctype = self.job.storage(s.tensor)
                place = index_text(s.index, self._variables("chunk"), scope, "int64_t")
                w.line(f"alignas(64) {ctype} buffer{k}[kStream ? kChunk : 1];")
                w.line(f"{ctype}* const to{k} = kStream ? buffer{k} : {self.job.pointer(s.tensor)} + ({place});")
            w.line("#pragma omp simd")
            with w.block("for (int64_t row = chunk; row < last; ++row)"):
                self._lane_body(w, stage, scope)
            for k, s in enumerate(stores):
                place = index_text(s.index, self._variables("chunk"), scope, "int64_t")
                w.line(f"if (kStream) forge_stream({self.job.pointer(s.tensor)} + ({place}), buffer{k}, last - chunk);")

    def _blocked(self, w: Writer, stage: Stage, scope: Names, begin: str, end: str) -> None:
        with w.block(f"for (int64_t block = {begin}; block < {end}; block += {BLOCK})"):
            w.line(f"const int64_t last = block + {BLOCK} < {end} ? block + {BLOCK} : {end};")
            for reduce in stage.reduces:
                self._open_lanes(w, reduce)
            with w.block("const auto step = [&](int64_t row, int lane) __attribute__((always_inline))", "};"):
                self._lane_body(w, stage, scope)
                for reduce in stage.reduces:
                    self._accumulate(w, reduce, scope)
            w.line("int64_t row = block;")
            with w.block("for (; row + kLanes <= last; row += kLanes)"):
                w.line("#pragma omp simd")
                w.line("for (int lane = 0; lane < kLanes; ++lane) step(row + lane, lane);")
            w.line("for (int lane = 0; row + lane < last; ++lane) step(row + lane, lane);")
            for reduce in stage.reduces:
                self._fold_lanes(w, reduce)

    def _lane_body(self, w: Writer, stage: Stage, outside: Names) -> None:
        scope = outside.copy()
        streamed = [s for s in stage.body if id(s) in self.streamed]
        elsewhere = (*stage.keeps, *(r.arg for r in stage.reduces), *(r.arg for r in stage.scans))
        idle = idle_positions(stage.body, self.lanes, elsewhere)
        for s in stage.body:
            if self._level(s) is not Level.LANE or name_of(s) in idle:
                continue
            if isinstance(s, Store) and id(s) in self.streamed:
                w.line(f"to{streamed.index(s)}[row - chunk] = {self._stored(s, scope)};")
            else:
                self._statement(w, s, scope, "row")
        for name in stage.keeps:
            w.line(f"{self._kept(name)}[row] = {scope.text[name]};")
        for scan in stage.scans:
            w.line(f"{self._kept(scan.name)}[row] = {scope.as_type(scan.arg, REGISTER[scan.dtype])};")

    # -- reductions ------------------------------------------------------------------------------------------

    def _open_reduce(self, w: Writer, r: Reduce) -> None:
        name = c_name(r.name)
        w.line(f"{total_type(r)} {name}_total = {identity(r, total_type(r))};")
        if is_arg(r):
            w.line(f"{self._position_type()} {name}_total_at = {self._nowhere()};")

    def _open_lanes(self, w: Writer, r: Reduce) -> None:
        name, ctype = c_name(r.name), accumulator_type(r)
        w.line(f"alignas(64) {ctype} {name}_lanes[kLanes];")
        w.line(f"for (int lane = 0; lane < kLanes; ++lane) {name}_lanes[lane] = {identity(r, ctype)};")
        if is_arg(r):
            w.line(f"alignas(64) {self._position_type()} {name}_at[kLanes];")
            w.line(f"for (int lane = 0; lane < kLanes; ++lane) {name}_at[lane] = {self._position_type()}(block + lane);")

    def _accumulate(self, w: Writer, r: Reduce, scope: Names) -> None:
        name, ctype = c_name(r.name), accumulator_type(r)
        if not is_arg(r):
            value = truth_or_value(scope, r, ctype)
            w.line(f"{name}_lanes[lane] = {fold(r, f'{name}_lanes[lane]', value)};")
            return
        # A lane sees its positions in order, so the first of equals stays without a look at positions.
        beats = "forge_arg_rises" if r.fn == "argmax" else "forge_arg_falls"
        with w.block(""):
            w.line(f"const {ctype} value = {scope.as_type(r.arg, ctype)};")
            w.line(f"const bool better = {beats}(value, {name}_lanes[lane]);")
            w.line(f"{name}_lanes[lane] = better ? value : {name}_lanes[lane];")
            w.line(f"{name}_at[lane] = better ? {self._position_type()}(row) : {name}_at[lane];")

    def _fold_lanes(self, w: Writer, r: Reduce) -> None:
        name = c_name(r.name)
        if not is_arg(r):
            folded = convert(f"forge_fold_{CPU_FOLD[r.fn]}({name}_lanes, kLanes)", accumulator_type(r), total_type(r))
            w.line(f"{name}_total = {fold(r, f'{name}_total', folded)};")
            return
        above = "forge_arg_above" if r.fn == "argmax" else "forge_arg_below"
        with w.block("for (int lane = 0; lane < kLanes; ++lane)"):
            w.line(f"if (!{above}({name}_lanes[lane], {name}_at[lane], {name}_total, {name}_total_at)) continue;")
            w.line(f"{name}_total = {name}_lanes[lane];")
            w.line(f"{name}_total_at = {name}_at[lane];")

    def _close_reduce(self, w: Writer, r: Reduce) -> None:
        name = c_name(r.name)
        result = (
            f"int64_t({name}_total_at)" if is_arg(r) else convert(f"{name}_total", total_type(r), self.names.ctype(r.name))
        )
        w.line(f"const {self.names.ctype(r.name)} {name} = {result};")

    def _position_type(self) -> str:
        return "int32_t" if self.job.index_bits == 32 else "int64_t"

    def _nowhere(self) -> str:
        return "INT32_MAX" if self.job.index_bits == 32 else "INT64_MAX"

    def _scan(self, w: Writer, scan: Scan) -> None:
        row = self._kept(scan.name)
        # One running value over the whole row: double costs nothing here and is what eager does.
        compute = "double" if REGISTER[scan.compute] == "float" else REGISTER[scan.compute]
        with w.block(""):
            w.line(f"{compute} running = {literal(0 if scan.fn == 'sum' else 1, compute)};")
            with w.block("for (int64_t row = begin; row < end; ++row)"):
                w.line(
                    f"running = forge_{'add' if scan.fn == 'sum' else 'mul'}(running, "
                    f"{convert(f'{row}[row]', REGISTER[scan.dtype], compute)});"
                )
                w.line(f"{row}[row] = {round_to('running', compute, scan.dtype)};")

    # -- statements ------------------------------------------------------------------------------------------

    def _level(self, s: Statement) -> Level:
        return Level.LANE if isinstance(s, (Store, Reduce, Scan)) else self.lanes.level[s.name]

    def _variables(self, row: str) -> dict[Index, str]:
        return {ROW: row, **{("d", k): f"d{k}" for k in range(len(self.part.outer))}}

    def _statement(self, w: Writer, s: Statement, scope: Names, row: str) -> None:
        """One statement as a line; ``scope`` learns where its value is."""
        if isinstance(s, Store):
            place = index_text(s.index, self._variables(row), scope, "int64_t")
            w.line(f"{self.job.pointer(s.tensor)}[{place}] = {self._stored(s, scope)};")
            return
        scope.text[s.name] = c_name(s.name)
        w.line(f"const {scope.ctype(s.name)} {c_name(s.name)} = {self._value(s, scope, row)};")

    def _value(self, s: Statement, scope: Names, row: str) -> str:
        match s:
            case Load():
                place = f"{self.job.pointer(s.tensor)}[{index_text(s.index, self._variables(row), scope, 'int64_t')}]"
                value = place if self.job.storage(s.tensor) == scope.ctype(s.name) else f"forge_get({place})"
                return value if s.mask is None else f"{scope.text[s.mask]} ? {value} : {literal(0, scope.ctype(s.name))}"
            case IndexValue():
                return convert(index_text(s.index, self._variables(row), scope, "int64_t"), "int64_t", scope.ctype(s.name))
            case CheckedIndex():
                size = index_text(s.size, self._variables(row), scope, "int64_t")
                return f"forge_checked({scope.as_type(s.arg, 'int64_t')}, {size}, {literal(s.wrap, 'bool')}, &failed)"
            case Op():
                text = op_text(s, scope, "cpu")
                return text[1:-1] if text.startswith("(") and text.count("(") == 1 else text
        raise TypeError(f"{type(s).__name__} is not a per-element statement")

    def _stored(self, s: Store, scope: Names) -> str:
        return stored(s.value, self.job.lowered.program.tensors[s.tensor].dtype, scope)
