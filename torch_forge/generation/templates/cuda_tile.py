"""One tile on CUDA: the elements that a block holds at once, ``kVectors`` vectors of ``kWidth`` per thread.

First every load whose address is known, so that they are all in flight together; then, vector by vector, what
neighbours share once and the rest per lane; results leave as vectors. Loops over vectors and lanes unroll
completely, so every array here lives in registers. Inputs are kept there as they came, in their own type.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch_forge.generation.templates.expressions import (
    HALVES,
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
from torch_forge.generation.templates.folds import CUDA_FOLD, accumulator_type, is_arg, truth_or_value
from torch_forge.generation.templates.lanes import Lanes, Level, idle_positions
from torch_forge.generation.templates.schedule import name_of, uses
from torch_forge.generation.templates.terms import ROW, Step
from torch_forge.generation.templates.writer import Writer
from torch_forge.records.program import CheckedIndex, Index, IndexValue, Load, Op, Part, Reduce, Scan, Statement, Store


@dataclass
class Tile:
    """Writes statements of one part (in row form) for the vectors of a thread."""

    job: Job
    part: Part
    names: Names
    lanes: Lanes
    rows_vary: bool
    """Pointwise: outer loop variables differ between vectors, so what depends on them is computed per vector."""
    flat: bool
    """Pointwise over one dimension: the last vector may be partial and ``count`` says how much of it there is."""
    position: tuple[str, ...] = ()
    """Lines that set ``row0`` (and ``d0`` ...) for vector ``j``."""
    guard: str = ""
    """Condition under which vector ``j`` exists."""
    store_guard: str = ""
    """Condition under which this thread's row exists."""
    loaded: set[str] = field(default_factory=set)
    shared: dict[str, str] = field(default_factory=dict)
    """Divisor -> C name of its ForgeShared."""

    @property
    def index_type(self) -> str:
        return f"int{self.job.index_bits}_t"

    # -- loads ----------------------------------------------------------------------------------------------------------

    def hoistable(self, body: tuple[Statement, ...]) -> list[Load]:
        """Loads whose address and mask do not depend on anything that differs between lanes."""
        loads = (s for s in body if isinstance(s, Load) and self._per_vector(s))
        return [s for s in loads if all(self._level(u) < Level.LANE for u in uses(s))]

    def _per_vector(self, s: Statement) -> bool:
        """Not already done once per row."""
        return self.rows_vary or self._statement_level(s) is not Level.ROW

    def _level(self, name: str) -> Level:
        return self.lanes.level.get(name, Level.LANE)

    def _statement_level(self, s: Statement) -> Level:
        name = name_of(s)
        return Level.LANE if name is None else self._level(name)

    def declare(self, w: Writer, loads: list[Load]) -> None:
        """Register arrays for loads."""
        for s in loads:
            ctype = self.job.storage(s.tensor)
            whole = f"ForgeVec<{ctype}, kWidth>" if self._level(s.name) is Level.LANE else ctype
            w.line(f"{whole} {c_name(s.name)}_raw[kVectors];")

    def load(self, w: Writer, body: tuple[Statement, ...], loads: list[Load], scope: Names) -> None:
        """All loads of the tile, before anything waits for one."""
        if not loads:
            return
        wanted = {id(s) for s in loads}
        needed = self._needed_for(body, loads)
        scope = scope.copy()
        w.line("#pragma unroll")
        with w.block("for (int j = 0; j < kVectors; ++j)"):
            self._open_vector(w)
            self._bases(body, scope)
            for s in body:
                if id(s) in wanted:
                    assert isinstance(s, Load)
                    self._load(w, s, scope)
                    scope.text[s.name] = f"forge_get({c_name(s.name)}_raw[j])"
                elif name_of(s) in needed and not isinstance(s, Load) and self._per_vector(s):
                    self._define(w, s, scope, "row0")
            self._close_vector(w)
        self.loaded |= {s.name for s in loads}

    def _needed_for(self, body: tuple[Statement, ...], loads: list[Load]) -> set[str]:
        needed = {u for s in loads for u in uses(s)}
        for s in reversed(body):
            if name_of(s) in needed and self._statement_level(s) is not Level.LANE:
                needed |= uses(s)
        return {n for n in needed if self._level(n) is not Level.LANE}

    def _load(self, w: Writer, s: Load, scope: Names) -> None:
        name, tensor, ctype = c_name(s.name), f"a.{self.job.pointer(s.tensor)}", self.job.storage(s.tensor)
        place = self._index(s.index, "row0", scope)
        if self._level(s.name) is not Level.LANE:
            value, zero = f"forge_load_one({tensor} + {place})", f"{ctype}()"
        elif self.lanes.pattern[id(s)].step is Step.ONE:
            count = ", count" if self.flat else ""
            value, zero = f"forge_load<kWidth>({tensor} + {place}{count})", f"ForgeVec<{ctype}, kWidth>()"
        else:
            place = self._index(s.index, "row0 + lane", scope)
            condition = " && ".join(([f"lane < {'count'}"] if self.flat else []) + ([scope.text[s.mask]] if s.mask else []))
            one = f"forge_load_one({tensor} + {place})"
            w.line("#pragma unroll")
            w.line("for (int lane = 0; lane < kWidth; ++lane)")
            w.line(f"  {name}_raw[j].at[lane] = {f'{condition} ? {one} : {ctype}()' if condition else one};")
            return
        w.line(f"{name}_raw[j] = {f'{scope.text[s.mask]} ? {value} : {zero}' if s.mask else value};")

    # -- computing -----------------------------------------------------------------------------------------------------

    def compute(
        self, w: Writer, body: tuple[Statement, ...], scope: Names, *, reads: tuple[Statement, ...] = (),
        keeps: tuple[str, ...] = (),
        reduces: tuple[Reduce, ...] = (), scans: tuple[Scan, ...] = (),
    ) -> None:  # fmt: skip
        """Everything that follows the loads, vector by vector."""
        scope = scope.copy()
        for s in scans:
            w.line(f"{REGISTER[s.compute]} {c_name(s.name)}_run[kVectors][kWidth], {c_name(s.name)}_before[kVectors];")
        w.line("#pragma unroll")
        with w.block("for (int j = 0; j < kVectors; ++j)"):
            for s in scans:
                w.line(f"{c_name(s.name)}_before[j] = {literal(0 if s.fn == 'sum' else 1, REGISTER[s.compute])};")
            self._open_vector(w)
            elsewhere = (*keeps, *(r.arg for r in reduces), *(r.arg for r in scans))
            self._per_vector_values(w, body, scope, elsewhere)
            stores = [s for s in body if isinstance(s, Store)]
            vectors = [s for s in stores if self.lanes.pattern[id(s)].step is Step.ONE]
            for k, store in enumerate(vectors):
                w.line(f"ForgeVec<{self.job.storage(store.tensor)}, kWidth> result{k};")
            w.line("#pragma unroll")
            with w.block("for (int lane = 0; lane < kWidth; ++lane)"):
                lines = Writer()
                self._lane(lines, body, scope.copy(), reads, keeps, reduces, scans, vectors)
                if lines.mentions("row"):
                    w.line(f"const {self.index_type} row = row0 + lane;")
                w.include(lines)
            for k, store in enumerate(vectors):
                self._store_vector(w, store, k, scope)
            self._close_vector(w)

    def _per_vector_values(self, w: Writer, body: tuple[Statement, ...], scope: Names, elsewhere: tuple[str, ...]) -> None:
        """What the lanes of a vector share and is still wanted once the loads are done; where the loaded values are."""
        wanted = set(elsewhere)
        for s in reversed(body):
            if not (isinstance(s, Load) and s.name in self.loaded) and (
                name_of(s) in wanted or isinstance(s, (Store, CheckedIndex))
            ):
                wanted |= uses(s)
        self._bases(body, scope)
        positions = {s.name: c_name(s.name) for s in body if isinstance(s, IndexValue) and self._level(s.name) is Level.LANE}
        for s in body:
            if isinstance(s, Load) and s.name in self.loaded:
                lane = ".at[lane]" if self._level(s.name) is Level.LANE else ""
                scope.text[s.name] = f"forge_get({c_name(s.name)}_raw[j]{lane})"
                if not lane and s.name in wanted:
                    w.line(f"const {scope.ctype(s.name)} {c_name(s.name)} = {scope.text[s.name]};")
                    scope.text[s.name] = c_name(s.name)
            elif self._statement_level(s) is Level.LANE or not self._per_vector(s):
                continue
            elif name_of(s) in wanted or isinstance(s, CheckedIndex):
                self._define(w, s, scope, "row0")
        scope.text.update(positions)

    def _lane(
        self, w: Writer, body: tuple[Statement, ...], scope: Names, reads: tuple[Statement, ...], keeps: tuple[str, ...],
        reduces: tuple[Reduce, ...], scans: tuple[Scan, ...], vectors: list[Store],
    ) -> None:  # fmt: skip
        for read in reads:
            self._read(w, read, scope)
        idle = idle_positions(body, self.lanes, (*keeps, *(r.arg for r in reduces), *(r.arg for r in scans)))
        for s in body:
            if self._statement_level(s) is not Level.LANE or name_of(s) in idle:
                continue
            if not isinstance(s, Store):
                self._define(w, s, scope, "row")
            elif s in vectors:
                w.line(f"result{vectors.index(s)}.at[lane] = {self._stored(s, scope)};")
            else:
                self._store_lane(w, s, scope)
        for name in keeps:
            w.line(f"{c_name(name)}_kept[j][lane] = {stored(name, scope.dtype[name], scope)};")
        for scan in scans:
            value, before = scope.as_type(scan.arg, REGISTER[scan.compute]), f"{c_name(scan.name)}_before[j]"
            combined = f"forge_{'add' if scan.fn == 'sum' else 'mul'}({before}, {value})"
            w.line(f"{c_name(scan.name)}_run[j][lane] = {before} = {combined};")
        for reduce in reduces:
            self._accumulate(w, reduce, scope)

    def _read(self, w: Writer, s: Statement, scope: Names) -> None:
        """A value that an earlier stage kept."""
        name = name_of(s)
        assert name is not None
        c = c_name(name)
        if isinstance(s, Scan):
            total = f"forge_{'add' if s.fn == 'sum' else 'mul'}({c}_before[j], {c}_run[j][lane])"
            value = round_to(total, REGISTER[s.compute], s.dtype)
        else:
            value = f"forge_get({c}_kept[j][lane])"
        w.line(f"const {scope.ctype(name)} {c} = {value};")
        scope.text[name] = c

    def _accumulate(self, w: Writer, r: Reduce, scope: Names) -> None:
        fold, ctype = f"{c_name(r.name)}_fold", accumulator_type(r)
        value = truth_or_value(scope, r, ctype)
        if is_arg(r):
            w.line(f"forge_take<{CUDA_FOLD[r.fn]}>({fold}, {fold}_at, {value}, row);")
        else:
            w.line(f"{fold} = {CUDA_FOLD[r.fn]}::of({fold}, {value});")

    # -- statements ------------------------------------------------------------------------------------------------------

    def row_statement(self, w: Writer, s: Statement, scope: Names, once: str) -> None:
        """A statement that runs once per row; ``once``: condition for the one thread that stores."""
        if isinstance(s, Store):
            place = self._index(s.index, "0", scope)
            w.line(f"if ({once}) a.{self.job.pointer(s.tensor)}[{place}] = {self._stored(s, scope)};")
        else:
            self._define(w, s, scope, "0")

    def _define(self, w: Writer, s: Statement, scope: Names, row: str) -> None:
        name = name_of(s)
        assert name is not None
        if name in self.loaded:
            text = scope.text[name]
            w.line(f"const {scope.ctype(name)} {c_name(name)} = {text};")
        else:
            w.line(f"const {scope.ctype(name)} {c_name(name)} = {self._value(s, scope, row)};")
        scope.text[name] = c_name(name)

    def _value(self, s: Statement, scope: Names, row: str) -> str:
        match s:
            case Load():
                value = f"forge_get(forge_load_one(a.{self.job.pointer(s.tensor)} + {self._index(s.index, row, scope)}))"
                conditions = [scope.text[s.mask]] if s.mask else []
                if self.flat and row == "row":
                    conditions.insert(0, "lane < count")
                return f"{' && '.join(conditions)} ? {value} : {literal(0, scope.ctype(s.name))}" if conditions else value
            case IndexValue():
                return convert(f"({self._index(s.index, row, scope)})", self.index_type, scope.ctype(s.name))
            case CheckedIndex():
                size = self._index(s.size, row, scope)
                return f"forge_checked({scope.as_type(s.arg, 'int64_t')}, {size}, {literal(s.wrap, 'bool')})"
            case Op():
                return self._op(s, scope)
        raise TypeError(f"{type(s).__name__} is not a per-element statement")

    def _op(self, s: Op, scope: Names) -> str:
        """An operation; a division by what the whole row shares multiplies by its inverse, with a correction."""
        divisor = s.args[1] if s.fn == "div" else None
        if isinstance(divisor, str) and divisor in self.shared:
            quotient = f"forge_div({scope.as_type(s.args[0], 'float')}, {self.shared[divisor]})"
            keep = s.name in scope.unrounded and s.dtype in HALVES
            return quotient if keep else round_to(quotient, "float", s.dtype)
        return op_text(s, scope, "cuda")

    def _bases(self, body: tuple[Statement, ...], scope: Names) -> None:
        """Positions that differ between lanes, as seen by what their vector shares: those of its first lane."""
        for s in body:
            if (
                isinstance(s, IndexValue)
                and self._level(s.name) is Level.LANE
                and all(self._level(u) < Level.LANE for u in uses(s))
            ):
                scope.text[s.name] = convert(
                    f"({self._index(s.index, 'row0', scope)})", self.index_type, scope.ctype(s.name)
                )

    def _stored(self, s: Store, scope: Names) -> str:
        return stored(s.value, self.job.lowered.program.tensors[s.tensor].dtype, scope)

    def _store_vector(self, w: Writer, s: Store, k: int, scope: Names) -> None:
        to = f"a.{self.job.pointer(s.tensor)} + {self._index(s.index, 'row0', scope)}"
        call = f"forge_store({to}, result{k}{', count' if self.flat else ''});"
        w.line(f"if ({self.store_guard}) {call}" if self.store_guard else call)

    def _store_lane(self, w: Writer, s: Store, scope: Names) -> None:
        line = f"a.{self.job.pointer(s.tensor)}[{self._index(s.index, 'row', scope)}] = {self._stored(s, scope)};"
        guard = " && ".join(([self.store_guard] if self.store_guard else []) + (["lane < count"] if self.flat else []))
        w.line(f"if ({guard}) {line}" if guard else line)

    def _index(self, index: Index, row: str, scope: Names) -> str:
        variables = {ROW: row, **{("d", k): f"d{k}" for k in range(len(self.part.outer))}}
        return index_text(index, variables, scope, self.index_type)

    def _open_vector(self, w: Writer) -> None:
        for line in self.position:
            w.line(line)
        if self.guard:
            w.line(f"if ({self.guard}) {{")
            w.indent(1)

    def _close_vector(self, w: Writer) -> None:
        if self.guard:
            w.indent(-1)
            w.line("}")
