"""The report as Markdown, for an issue or a pull request."""

from __future__ import annotations

import re

from torch_forge.report.cells import HEADERS, NUMERIC, cells, percent
from torch_forge.report.summarize import ReportData
from torch_forge.report.text import stage_line


def render(data: ReportData) -> str:
    """GitHub-flavoured Markdown. Names and messages cannot break out of their cell or become markup."""
    lines = [f"# {escape(data.title)}", "", f"**{escape(data.headline)}**", ""]
    lines += [f"- {name}: {escape(value)}" for name, value in data.facts]
    if data.rows:
        lines += ["", "## Regions", "", *_table(data)]
    if data.model:
        lines += ["", "## Whole model", "", *(f"- {name}: {escape(value)}" for name, value in data.model)]
    if data.left:
        lines += ["", "## Left alone", "", "| share | what | why |", "|---:|---|---|"]
        lines += [f"| {percent(share)} | {escape(what)} | {escape(why)} |" for what, share, why in data.left]
    if data.stages:
        lines += ["", "## Time", "", stage_line(data)]
    if data.notes:
        lines += ["", "## Notes", "", *(f"- {escape(note)}" for note in data.notes)]
    if data.advice:
        lines += ["", "## What next", "", *(f"- {line}" for line in data.advice)]
    return "\n".join(lines) + "\n"


def _table(data: ReportData) -> list[str]:
    headers = (*HEADERS, "why")
    rule = "|".join("---:" if header in NUMERIC else "---" for header in headers)
    rows = [(*(escape(cell) for cell in cells(row)), f"{escape(row.why)} ({escape(row.details)})") for row in data.rows]
    return [f"| {' | '.join(headers)} |", f"|{rule}|", *(f"| {' | '.join(row)} |" for row in rows)]


def escape(text: str) -> str:
    """One line of literal text."""
    return re.sub(r"([\\`*_|<>\[\]#])", r"\\\1", " ".join(text.split()))
