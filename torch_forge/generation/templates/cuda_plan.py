"""How wide, how many, how long: launch configurations from sizes, before any source is written.

A thread handles ``vectors`` groups of ``width`` neighbouring elements. Sixteen bytes per access is what the memory
system wants; between one and four accesses in flight per thread hide its latency; more only cost registers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch_forge.generation.templates.lanes import Lanes, analyse
from torch_forge.generation.templates.schedule import live
from torch_forge.generation.templates.terms import ROW, Along, Step
from torch_forge.records.program import Index, Load, Part, Store
from torch_forge.records.tensors import DTYPES

WIDTHS = (16, 8, 4, 2)
MOST_CONFIGS = 6
REGISTER_BYTES = 256
"""Bytes of inputs and kept values that one thread may hold: 64 of its registers."""
WIDE_BLOCK_BYTES = 128
"""The same in a block of more than 512 threads, where the register file gives each half as much."""
TEAMS = (4, 8, 16, 32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024)
SMALL_TEAM_BLOCK = 128
"""Threads of a block in which several rows have a warp or less each."""


@dataclass(frozen=True)
class Launch:
    """One instantiation of a kernel."""

    threads: int
    """Per row in a row kernel, per block in a pointwise one."""
    width: int
    vectors: int
    rows: int = 1
    """Rows per block."""

    def params(self) -> dict[str, int]:
        return {"threads": self.threads, "width": self.width, "vectors": self.vectors, "rows_per_block": self.rows}


@dataclass(frozen=True)
class Vectors:
    """The widest useful group and the analysis that goes with it."""

    width: int
    lanes: Lanes

    def narrower(self, largest_bytes: int) -> list[int]:
        """Widths to offer: as wide as possible, and where one access is sixteen bytes for the largest element."""
        return sorted({self.width, max(1, min(self.width, 16 // largest_bytes))} - {1}, reverse=True)


def vectors(parts: list[Part], dtypes: tuple[str, ...], statics: Mapping[str, int], exact: str | None) -> list[Vectors]:
    """For each part the same width: the widest at which most accesses still are contiguous, 1 if none is.

    exact: a parameter that the width must divide (the row length), if it is compiled in.
    """
    sizes = [
        DTYPES[dtypes[s.tensor]].nbytes
        for part in parts
        for s in part.body
        if isinstance(s, (Load, Store)) and _moves(s.index)
    ]
    limit = min(16 // min(sizes, default=4), 8 if max(sizes, default=4) > 1 else 16)
    row = statics.get(exact) if exact is not None else None
    options = []
    for width in (*(w for w in WIDTHS if w <= limit and (row is None or row % w == 0)), 1):
        lanes = [analyse(live(part.body), Along(ROW, width, statics)) for part in parts]
        options.append((sum(lane.contiguous for lane in lanes), width, lanes))
    best = max(options, key=lambda option: (option[0], option[1]))
    if best[0] == 0:
        best = options[-1]
    return [Vectors(best[1], lanes) for lanes in best[2]]


def _moves(index: Index) -> bool:
    """Whether the row variable changes which element is accessed."""
    return Along(ROW, 1, {}).pattern(index).step is not Step.NONE


def row_launches(n: int, widths: list[int], live_bytes: int, rows: int, units: int) -> list[Launch]:
    """Register kernels for rows of ``n``: the first is scalar, the rest best first; empty if a row does not fit."""
    scalar = _ranked(n, 1, live_bytes, rows, units)
    if not scalar:
        return []
    wide = [launch for w in widths for launch in _ranked(n, w, live_bytes, rows, units)]
    wide.sort(key=lambda launch: _badness(n, launch, rows, units))
    rest = wide or scalar[1:]
    return [scalar[0], *rest[: MOST_CONFIGS - 1]]


def _ranked(n: int, width: int, live_bytes: int, rows: int, units: int) -> list[Launch]:
    groups = max(1, math.ceil(n / width))
    found = []
    for threads in TEAMS:
        count = math.ceil(groups / threads)
        limit = REGISTER_BYTES if threads <= 512 else WIDE_BLOCK_BYTES
        if (
            count * width * live_bytes > limit
            or count > (32 if width == 1 else 8)
            or (threads > 32 and threads >= groups + 32)
        ):
            continue
        found.append(Launch(threads, width, count, max(1, SMALL_TEAM_BLOCK // threads) if threads <= 32 else 1))
    return sorted(found, key=lambda launch: _badness(n, launch, rows, units))


def _badness(n: int, launch: Launch, rows: int, units: int) -> float:
    """Lower is better: idle lanes, and distance from about sixteen elements a thread (fewer when blocks are few)."""
    idle = launch.threads * launch.width * launch.vectors / max(1, n) - 1
    target = 16 if rows >= 4 * units else 4
    crowded = 0.5 if launch.threads > 512 and rows >= 4 * units else 0.0
    return 2 * idle + abs(math.log2(launch.width * launch.vectors / target)) + crowded


def stream_launches(widths: list[int]) -> list[Launch]:
    """Kernels that run along rows of any length."""
    wide = [Launch(t, w, k) for w in widths for t, k in ((512, 2), (1024, 1), (1024, 2), (256, 4), (256, 2))]
    return [Launch(512, 1, 4), *(wide or [Launch(1024, 1, 4), Launch(256, 1, 8), Launch(256, 1, 2)])][:MOST_CONFIGS]


def pointwise_launches(widths: list[int]) -> list[Launch]:
    """Kernels over independent elements."""
    wide = [Launch(256, w, k) for w in widths for k in (2, 1, 4)]
    wide += [Launch(128, w, 2) for w in widths]
    return [Launch(256, 1, 4), *(wide or [Launch(256, 1, 1), Launch(256, 1, 2), Launch(256, 1, 8)])][:MOST_CONFIGS]
