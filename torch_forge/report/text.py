"""The report as text: plain for logs and files, coloured for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from torch_forge.report.cells import HEADERS, MISSING, NUMERIC, cells, percent
from torch_forge.report.summarize import ReportData

if TYPE_CHECKING:
    from rich.console import Group

WIDTH = 110
GAP = "  "
SHORTEST_NAME = 6
COLOURS = {"installed": "green", "kept eager": "default", "failed": "yellow", "undone": "yellow"}


def render(data: ReportData, *, width: int = WIDTH) -> str:
    """Plain text, no line longer than ``width`` columns unless one word is; the table keeps at least its numbers."""
    lines = [data.title, "=" * len(data.title), "", *_wrap(data.headline, width), ""]
    lines += _pairs(data.facts, width)
    if data.rows:
        lines += ["", *_table(data, width)]
    if data.model:
        lines += ["", "Whole model", *_pairs(data.model, width)]
    if data.left:
        lines += ["", "Left alone"]
        for what, share, why in data.left:
            lines += _wrap(f"{percent(share):>6}  {what}: {why}", width, "  ")
    if data.stages:
        lines += ["", *_wrap("Time: " + stage_line(data), width)]
    for heading, items in (("Notes", data.notes), ("What next", data.advice)):
        if items:
            lines += ["", heading]
            for item in items:
                lines += _wrap(item, width, "  ")
    return "\n".join(lines) + "\n"


def stage_line(data: ReportData) -> str:
    """``profile 1.2 s, forge 30.1 s; together 31.3 s``."""
    each = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in data.stages)
    return f"{each}; together {sum(seconds for _, seconds in data.stages):.1f} s"


def render_rich(data: ReportData) -> Group:
    """The same as a ``rich`` renderable. Nothing in a report is read as markup."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for header in HEADERS:
        table.add_column(header, justify="right" if header in NUMERIC else "left", no_wrap=header in NUMERIC)
    table.add_column("why", ratio=1)
    for row in data.rows:
        *numbers, verdict = cells(row)
        table.add_row(*map(Text, numbers), Text(verdict, style=COLOURS.get(row.verdict, "default")), Text(row.why))
    blocks: list[Table | Text] = [Text(data.title, style="bold"), Text(data.headline)]
    if data.rows:
        blocks += [Text(), table]
    if data.model:
        blocks += [Text(), Text("Whole model", style="bold"), *(Text(line) for line in _pairs(data.model, WIDTH))]
    if data.left:
        blocks += [Text(), Text("Left alone", style="bold")]
        blocks += [Text(f"{percent(share):>6}  {what}: {why}") for what, share, why in data.left]
    if data.stages:
        blocks += [Text(), Text("Time: " + stage_line(data), style="dim")]
    blocks += [Text(note, style="yellow") for note in data.notes]
    blocks += [Text(line, style="dim") for line in data.advice]
    return Group(*blocks)


def _table(data: ReportData, width: int) -> Iterator[str]:
    """Columns as wide as their contents; names are shortened to fit, numbers never; the reason goes below its row."""
    columns = [column for column in zip(HEADERS, *map(cells, data.rows), strict=True) if set(column[1:]) != {MISSING}]
    widths = {column[0]: max(map(len, column)) for column in columns}
    excess = sum(widths.values()) + len(GAP) * (len(widths) - 1) - width
    for name in ("module", "region"):
        cut = min(max(excess, 0), max(widths.get(name, 0) - SHORTEST_NAME, 0))
        if cut:
            widths[name] -= cut
            excess -= cut
    head, *body = zip(*columns, strict=True)
    yield _line(head, widths)
    yield GAP.join("-" * w for w in widths.values())
    for row, values in zip(data.rows, body, strict=True):
        yield _line(values, widths)
        for text in (row.why, row.details):
            yield from _wrap(text, width, "    ")


def _line(values: Sequence[str], widths: Mapping[str, int]) -> str:
    shown = zip(values, widths.items(), strict=True)
    return GAP.join(v.rjust(w) if name in NUMERIC else _short(v, w).ljust(w) for v, (name, w) in shown).rstrip()


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 2] + ".."


def _pairs(pairs: tuple[tuple[str, str], ...], width: int) -> Iterator[str]:
    """``name   value``, aligned, each value wrapped under itself."""
    indent = max(len(name) for name, _ in pairs) + 4
    for name, value in pairs:
        yield from textwrap.wrap(f"  {name}".ljust(indent) + value, width, subsequent_indent=" " * indent) or [f"  {name}"]


def _wrap(text: str, width: int, indent: str = "") -> list[str]:
    """Also splits at the line breaks of a compiler's message."""
    wrapper = textwrap.TextWrapper(width, initial_indent=indent, subsequent_indent=indent + "  ", break_long_words=False)
    return [line for part in text.splitlines() for line in wrapper.wrap(part)]
