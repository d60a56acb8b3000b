"""The gates "source" and "binary": what a candidate contains, before anything of it runs."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection

from torch_forge.records.kernels import Built, Candidate
from torch_forge.records.outcomes import Refused
from torch_forge.validation.static.binary import binary_reasons
from torch_forge.validation.static.python import python_reasons
from torch_forge.validation.static.source import source_reasons

NO_BINARY = "" if importlib.util.find_spec("elftools") else "pyelftools is not installed"
"""Why the gate "binary" is not available here; empty if it is."""
_SHOWN = 5
"""Reasons that are spelled out."""


def refused_source(candidate: Candidate, off: Collection[str] = ()) -> Refused | None:
    """Why the candidate is not even built; None if its source has nothing that a kernel has no reason to contain."""
    if "source" in off:
        return None
    if candidate.call is not None:
        return _refused(python_reasons(candidate.source), "source")
    return _refused(source_reasons(candidate.source, candidate.backend), "source")


def refused_binary(built: Built, off: Collection[str] = ()) -> Refused | None:
    """Why the built object is not loaded; None if it has nothing that it should not. Python candidates have none."""
    if "binary" in off or built.candidate.call is not None or NO_BINARY:
        return None
    size_bytes = len(built.candidate.source.encode())
    return _refused(binary_reasons(built.library, built.candidate.backend, source_bytes=size_bytes), "binary")


def _refused(reasons: list[str], gate: str) -> Refused | None:
    if not reasons:
        return None
    more = [f"and {len(reasons) - _SHOWN} more"] if len(reasons) > _SHOWN else []
    return Refused(0, "; ".join([*reasons[:_SHOWN], *more]), gate=gate)
