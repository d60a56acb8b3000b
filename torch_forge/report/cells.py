"""The region table's columns and how a number is written in them; shared by all renderers."""

from __future__ import annotations

from torch_forge.report.summarize import Row

HEADERS = ("region", "module", "share", "eager us", "compile us", "forge us", "bound us", "% of bound", "verdict")
NUMERIC = frozenset(HEADERS[2:8])
"""Right-aligned."""
MISSING = "-"


def cells(row: Row) -> tuple[str, ...]:
    """One row of the table, without the reason."""
    return (
        row.region,
        row.module or MISSING,
        percent(row.share),
        microseconds(row.eager_us),
        microseconds(row.inductor_us),
        microseconds(row.forge_us),
        microseconds(row.bound_us),
        MISSING if row.percent_of_bound is None else f"{row.percent_of_bound:.0f}",
        row.verdict,
    )


def microseconds(us: float | None) -> str:
    """Three significant digits, never an exponent."""
    if us is None:
        return MISSING
    return f"{us:.0f}" if us >= 100 else f"{us:.1f}" if us >= 10 else f"{us:.2f}"


def percent(share: float) -> str:
    """``12.3%``."""
    return f"{share:.1%}"
