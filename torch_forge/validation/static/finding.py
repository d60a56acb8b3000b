"""What a static rule found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One place that a kernel has no reason to contain, or that a reader should know about."""

    line: int
    """In the source, from 1; 0 where there is none, as in a binary."""
    rule: str
    """Short name of the rule: ``processes``, ``import``, ``constructor`` ..."""
    what: str
    """What was found, as it stands there, on one line."""
    why: str
    """What is wrong with it, so that whoever wrote it can do something about it."""
    rejects: bool = True
    """False: a note. It is worth knowing and proves nothing."""

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        return f"{where}`{self.what}` {self.why}"


def rejecting(findings: Iterable[Finding]) -> list[Finding]:
    """Those that are reason enough to refuse."""
    return [f for f in findings if f.rejects]


def tidy(findings: Iterable[Finding]) -> list[Finding]:
    """In the order of the lines, each rule's repetitions of one thing told once."""
    seen: set[tuple[str, str, str]] = set()
    kept = []
    for finding in sorted(findings):
        told = (finding.rule, finding.what, finding.why)
        if told not in seen:
            seen.add(told)
            kept.append(finding)
    return kept


def shown(text: str) -> str:
    """On one line and not too long."""
    return " ".join(text.split())[:80]


def names_in(text: str) -> frozenset[str]:
    """The words of a text: tables of names read best without a quote around each."""
    return frozenset(text.split())
