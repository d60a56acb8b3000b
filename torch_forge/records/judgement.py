"""The record of one judgement: all that somebody else needs to believe it, or to repeat it."""

from __future__ import annotations

from dataclasses import dataclass

from torch_forge.records.entry import Environment
from torch_forge.records.gates import GatesRun
from torch_forge.records.outcomes import Trial
from torch_forge.records.sandbox import SandboxReport
from torch_forge.records.timing import Confirmation


@dataclass(frozen=True)
class JudgementRecord:
    """What was asked, what was found, and what was not looked at."""

    accepted: bool
    gate: str | None
    """The gate that the kernel failed."""
    reason: str
    """The same in a line, with the first bad element or the signal."""
    problem: str
    """``Problem.digest``."""
    workload: str
    """``Problem.workload``: with every shape and stride."""
    policy: str
    device: str
    seed: int
    """Same seed, same inputs, same verdict."""
    library_sha256: str
    """Of the artefact that was run; empty if none was built. Hidden sizes follow from it."""
    gates: GatesRun
    weaknesses: tuple[str, ...]
    trial: Trial
    environment: Environment
    seconds: float
    sandbox: SandboxReport
    """Layers that were active, and those that are not available here."""
    confirmation: Confirmation | None = None
    """How it was timed; None if it was not."""
