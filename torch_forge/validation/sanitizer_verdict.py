"""What became of a kernel under a sanitizer, from what the driver and the tool left behind.

Each answer is a verdict against the candidate, a text where the machine or the tool is to blame, or None where all is well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch_forge.machine.launch import meaning
from torch_forge.records.outcomes import Crashed, Refused, TimedOut
from torch_forge.validation.sanitizer_commands import HOST_TOOL, LAUNCHES
from torch_forge.validation.sanitizer_reports import Notes, device_report, host_finding, read_notes

GATE = "sanitizers"
OURS = ("cudaMalloc", "aligned_alloc", "run file")
"""What the driver does on its own account: a failure there is none of the candidate's."""
_LOG_CHARS = 20_000

Finding = Refused | Crashed | TimedOut


def of_builds(builds: Mapping[str, Any], limit_s: float) -> Refused | str | None:
    """The driver is our source and needs the sanitizers' libraries too: if it does not build, the candidate is not asked."""
    for name in sorted(builds):  # the driver before the kernel
        text = builds[name]["text"]
        if builds[name]["timed_out"]:
            return f"the {name} did not build within {limit_s:g} s"
        if builds[name]["exit_status"] == 0:
            continue
        if name == "driver" or "Killed signal" in text:
            return f"the {name} does not build: {_complaint(text)}"
        return Refused(0, f"it does not build with sanitizers: {_complaint(text)}", GATE)
    return None


def of_tool(name: str, ran: Mapping[str, Any], cases: tuple[str, ...], limit_s: float) -> Finding | str | None:
    """cases: the names of what was run, in order."""
    notes, text = read_notes(ran["notes"]), ran["text"]
    if not notes.ready:
        return f"it cannot work here: {notes.failed or _complaint(text) or 'no answer'}"
    where = f" ({cases[notes.run]})" if 0 <= notes.run < len(cases) else ""
    if name == HOST_TOOL:
        found, complete, broken = host_finding(text, notes), True, ""
    else:
        report = device_report(text, notes.buffers)
        found, complete, broken = report.finding, report.complete, report.broken
    if found:
        return Refused(0, f"{name}: {found}{where}", GATE)
    if broken:
        return broken
    if ran["timed_out"]:
        if notes.launches == 0:
            return TimedOut(limit_s, text[-_LOG_CHARS:], GATE)
        return f"it came through {max(0, notes.run)} of {len(cases)} cases within {limit_s:g} s"
    if (reason := _driver_says(notes)) is not None:
        return reason if isinstance(reason, str) else Refused(reason.code, f"{name}: {reason.reason}{where}", GATE)
    if not notes.done or (ran["exit_status"] and name == HOST_TOOL):
        return Crashed(max(0, -ran["exit_status"]), ran["exit_status"], text[-_LOG_CHARS:], GATE)
    return None if complete else "it left no summary"


def _driver_says(notes: Notes) -> Refused | str | None:
    if notes.failed:
        return notes.failed if notes.failed.startswith(OURS) else Refused(0, notes.failed, GATE)
    if notes.code:
        return Refused(notes.code, f"forge_launch: {meaning(notes.code)}", GATE)
    for output in set(notes.untouched):
        if notes.untouched.count(output) >= LAUNCHES:
            return Refused(0, f"it writes nothing to output {output}", GATE)
    return None


def _complaint(text: str) -> str:
    """The line of a compiler's or tool's output that reads like an error; the last one if none does."""
    lines = [line.strip(" =") for line in text.splitlines() if line.strip(" =")]
    return next(
        (line for line in lines if re.search(r"error|cannot|fail|not ", line, re.IGNORECASE)), lines[-1] if lines else ""
    )[:300]
