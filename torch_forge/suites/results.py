"""What a suite run found: rows, the published JSON form, geometric means and a plain-text table.

The JSON form is read by people and by later runs for comparison, so its fields are fixed; the reason of a verdict is
for the terminal only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Row:
    """One workload. Times are medians of one call in microseconds; None: not measured."""

    name: str
    group: str
    eager_us: float | None
    inductor_us: float | None
    forge_us: float | None
    """The best right kernel, installed or not."""
    bound_us: float
    """Unavoidable traffic at the measured copy bandwidth."""
    verdict: str
    """``installed``, ``kept`` or ``failed``, as in ``records.session.RegionResult``."""
    origin: str
    error_vs_fp64: float | None
    """Root mean square over the outputs of the kernel."""
    eager_error_vs_fp64: float | None
    why: str = ""

    @property
    def used_us(self) -> float | None:
        """What a user gets: the kernel where it is installed, eager otherwise."""
        return self.forge_us if self.verdict == "installed" else self.eager_us


@dataclass(frozen=True)
class SuiteReport:
    """One run of a suite."""

    device: str
    torch: str
    date: str
    """UTC, ISO 8601."""
    command: str
    copy_gb_per_s: float
    workloads: tuple[Row, ...]

    def to_json(self) -> str:
        """The published form, indented, with a newline at the end."""
        plain = asdict(self)
        for row in plain["workloads"]:
            del row["why"]
        return json.dumps(plain, indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> SuiteReport:
        """The reverse of ``to_json``. Raises ValueError, TypeError or KeyError for anything else."""
        plain = json.loads(text)
        rows = tuple(Row(**row) for row in plain.pop("workloads"))
        return cls(workloads=rows, **plain)


@dataclass(frozen=True)
class GroupMeans:
    """Geometric means over the workloads of one group in which both sides were measured; None: there were none."""

    group: str
    count: int
    installed: int
    over_eager: float | None
    """Eager time / used time: above 1, the user gains."""
    over_inductor: float | None
    over_best: float | None
    """Against the faster of the two, workload by workload."""
    of_bound: float | None
    """Used time / bound: 1 is perfect."""


def group_means(rows: Sequence[Row]) -> list[GroupMeans]:
    """One entry per group, in order of first appearance."""
    return [_means(group, [r for r in rows if r.group == group]) for group in dict.fromkeys(r.group for r in rows)]


def _means(group: str, rows: Sequence[Row]) -> GroupMeans:
    used = [(r, r.used_us) for r in rows]
    best = {r.name: min((t for t in (r.eager_us, r.inductor_us) if t), default=None) for r in rows}
    return GroupMeans(
        group=group,
        count=len(rows),
        installed=sum(r.verdict == "installed" for r in rows),
        over_eager=_geomean((r.eager_us, u) for r, u in used),
        over_inductor=_geomean((r.inductor_us, u) for r, u in used),
        over_best=_geomean((best[r.name], u) for r, u in used),
        of_bound=_geomean((u, r.bound_us) for r, u in used),
    )


def _geomean(pairs: Iterable[tuple[float | None, float | None]]) -> float | None:
    logs = [math.log(above / below) for above, below in pairs if above and below]
    return math.exp(sum(logs) / len(logs)) if logs else None


HEADER = f"{'workload':<44} {'eager':>9} {'inductor':>9} {'forge':>9} {'bound':>9}  {'x eager':>7} {'x bound':>7}  verdict"
"""Columns of ``row_text``; times in microseconds."""


def row_text(row: Row) -> str:
    """One line of the table."""
    times = " ".join(_cell(t, 9) for t in (row.eager_us, row.inductor_us, row.forge_us, row.bound_us))
    gain = _ratio(row.eager_us, row.used_us)
    distance = _ratio(row.used_us, row.bound_us)
    reason = f": {row.why}" if row.why and row.verdict != "installed" else ""
    return f"{row.name:<44} {times}  {_cell(gain, 7, 2)} {_cell(distance, 7, 2)}  {row.verdict}{reason}"


def means_text(means: GroupMeans) -> str:
    """One line of summary."""
    sides = (("eager", means.over_eager), ("inductor", means.over_inductor), ("best of both", means.over_best))
    gains = ", ".join(f"{_cell(gain, 0, 2)}x over {side}" for side, gain in sides)
    count = f"{means.installed} of {means.count} installed"
    return f"{means.group}: {count}; geomean {gains}; {_cell(means.of_bound, 0, 2)}x the bound"


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above and below else None


def _cell(value: float | None, width: int, digits: int = 1) -> str:
    return f"{'-' if value is None else f'{value:.{digits}f}':>{width}}"
