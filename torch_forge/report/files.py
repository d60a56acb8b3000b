"""A report to a file, in the form that the file's name asks for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from torch_forge.errors import UsageError
from torch_forge.machine.files import atomic_write
from torch_forge.records import codec
from torch_forge.records.session import SessionReport
from torch_forge.report import markdown, text
from torch_forge.report.summarize import ReportData, summarize

WRITERS: Mapping[str, Callable[[SessionReport, ReportData], str]] = {
    ".json": lambda report, _: codec.dumps(report),
    ".md": lambda _, data: markdown.render(data),
    ".txt": lambda _, data: text.render(data),
}


def save(report: SessionReport, path: str | os.PathLike[str], *, data: ReportData | None = None) -> Path:
    """Write the report whole or not at all; ``.json`` can be read back with ``load``.

    data: the summary to render, if the caller made one. Raises UsageError for another suffix or a missing directory.
    """
    target = Path(path)
    writer = WRITERS.get(target.suffix.lower())
    if writer is None:
        raise UsageError(
            f"cannot write a report to {target.name!r}", advice=f"Name it with one of these suffixes: {', '.join(WRITERS)}."
        )
    if not target.parent.is_dir():
        raise UsageError(f"there is no directory {target.parent}", advice="Create it first, or write the report elsewhere.")
    content = writer(report, data or summarize(report))
    atomic_write(target, content)
    return target


def load(path: str | os.PathLike[str]) -> SessionReport:
    """A report from its ``.json`` file. Raises RecordError if it is not one."""
    report: SessionReport = codec.loads(SessionReport, Path(path).read_text(encoding="utf-8"))
    return report
