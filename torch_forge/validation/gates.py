"""What is looked at after a candidate has run: each check is a function from the evidence to a verdict or None."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from torch_forge.graphs.place import region_bytes, surroundings_kept, tensor_in
from torch_forge.machine.launch import meaning
from torch_forge.records.outcomes import CaseResult, Mismatch, Refused, Verdict
from torch_forge.records.tensors import TensorSpec
from torch_forge.validation.cases import PLAIN
from torch_forge.validation.compare import compare
from torch_forge.validation.expected import Prepared
from torch_forge.validation.tasks import JOURNAL, PATTERNS

_JOURNAL_BYTES = 16 << 20


@dataclass
class Evidence:
    """What one config did on one case. ``done`` is shared by the runs of one worker, so equal results are compared once."""

    prepared: Prepared
    report: Mapping[str, Any]
    """The worker's journal line."""
    scratch: Path
    done: dict[tuple[str, str], CaseResult | Refused | Mismatch]
    off: Collection[str] = ()
    results: list[CaseResult] = field(default_factory=list)

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        return self.prepared.case.problem.graph.output_specs

    def gate(self, otherwise: str) -> str:
        """The gate that this case belongs to, or the one that is being looked at where the case is an ordinary one."""
        return self.prepared.case.gate if self.prepared.case.gate != PLAIN else otherwise


Check = Callable[[Evidence], Verdict | None]


def launches(evidence: Evidence) -> Verdict | None:
    """``forge_launch`` says that it worked."""
    code, name = evidence.report.get("code"), evidence.prepared.case.name
    if code == 0:
        return None
    if not isinstance(code, int):
        return Refused(0, "it left no return code")
    return Refused(code, f"forge_launch: {meaning(code)} ({name})", gate=evidence.gate("launches"))


def has_form(evidence: Evidence) -> Verdict | None:
    """Results of a Python candidate are what eager would return, and it made them itself."""
    refused = evidence.report.get("refused")
    if not isinstance(refused, dict) or refused.get("gate") in evidence.off:
        return None
    gate = "own work" if refused.get("gate") == "own work" else "result form"
    return Refused(0, f"{refused.get('reason')} ({evidence.prepared.case.name})", gate=gate)


def keeps_inputs(evidence: Evidence) -> Verdict | None:
    """Inputs and the bytes around them are as before."""
    if evidence.report.get("inputs_kept") is True:
        return None
    return Refused(0, f"it writes to its inputs or around them ({evidence.prepared.case.name})", gate="keeps inputs")


def is_right(evidence: Evidence) -> Verdict | None:
    """Every element of every output is right and nothing around the outputs was written, in every run handed over."""
    runs, patterns = evidence.report.get("files"), evidence.report.get("patterns")
    if not isinstance(runs, list) or not isinstance(patterns, list) or not 1 <= len(runs) <= len(patterns):
        return Refused(0, "it left no outputs")
    for names, pattern in zip(runs, patterns, strict=False):
        if not isinstance(names, list) or len(names) != len(evidence.specs) or pattern not in PATTERNS:
            return Refused(0, "it left no outputs")
        for position, name in enumerate(names):
            result = _judged(evidence, position, str(name), pattern)
            if not isinstance(result, CaseResult):
                return result
            evidence.results.append(result)
    return None


def repeats(evidence: Evidence) -> Verdict | None:
    """The same inputs gave the same bits, unless eager's vary too."""
    turn = evidence.report.get("unsteady")
    if turn is None or not evidence.prepared.steady:
        return None
    name = evidence.prepared.case.name
    return Refused(0, f"run {turn} on the same inputs gave other bits than the first ({name})", gate="repeats")


CHECKS: tuple[tuple[str, Check], ...] = (
    ("launches", launches), ("", has_form), ("keeps inputs", keeps_inputs), ("", is_right), ("repeats", repeats),
)  # fmt: skip
"""In order; a new check is a function and a line here. ``is_right`` serves several gates."""


def first_verdict(evidence: Evidence) -> Verdict | None:
    """What the first check that fails has to say; None: all is well."""
    checks = (check for gate, check in CHECKS if gate not in evidence.off)
    return next((verdict for check in checks if (verdict := check(evidence)) is not None), None)


def _judged(evidence: Evidence, position: int, name: str, pattern: int) -> CaseResult | Refused | Mismatch:
    key = (evidence.prepared.case.name, f"{position}/{pattern}/{name}")
    if key not in evidence.done:
        evidence.done[key] = _judge_file(evidence, position, name, pattern)
    return evidence.done[key]


def _judge_file(evidence: Evidence, position: int, name: str, pattern: int) -> CaseResult | Refused | Mismatch:
    spec, case = evidence.specs[position], evidence.prepared.case.name
    region = read_region(evidence.scratch / os.path.basename(name), region_bytes(spec))
    if region is None:
        return Refused(0, f"output {position} is missing or has another size ({case})")
    if "stays inside" not in evidence.off and not surroundings_kept(region, spec, pattern):
        return Refused(0, f"it writes outside output {position} ({case})", gate="stays inside")
    expected = evidence.prepared.outputs[position]
    result = compare(tensor_in(region, spec).to(expected.eager.device), expected, case=case, output=position)
    if isinstance(result, Mismatch):
        return replace(result, gate=evidence.prepared.case.gate)
    return replace(result, told_apart=tuple(sorted(evidence.prepared.told_apart)))


def read_region(path: Path, nbytes: int) -> torch.Tensor | None:
    """The bytes of a file that must be a plain file of exactly this size; uint8 on the CPU."""
    data = _read_plain(path, nbytes)
    if data is None or len(data) != nbytes:
        return None
    return torch.frombuffer(data, dtype=torch.uint8)


def read_journal(scratch: Path) -> list[dict[str, Any]]:
    """The worker's notes; a line that it did not finish, or did not write as an object, is left out."""
    data = _read_plain(scratch / JOURNAL, _JOURNAL_BYTES) or bytearray()
    notes = []
    for line in bytes(data).splitlines():
        try:
            note = json.loads(line)
        except ValueError:
            continue
        if isinstance(note, dict):
            notes.append(note)
    return notes


def _read_plain(path: Path, limit: int) -> bytearray | None:
    """At most ``limit`` bytes and one more; links and pipes are not followed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        buffer = bytearray(min(size, limit + 1))
        read = file.readinto(buffer) if buffer else 0
        return buffer if read == len(buffer) else None
