"""Read what sanitizers print: one line that says what was done to which tensor, and where in the source.

Formats: GCC's and clang's AddressSanitizer and UndefinedBehaviorSanitizer, and NVIDIA's compute-sanitizer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

NEAR_BYTES = 1 << 20
"""An address further from every tensor than this is described without one."""
SOURCES = ("kernel.cpp", "cuda.cu")
"""What the candidate's source is called where it is compiled."""


@dataclass(frozen=True)
class Buffer:
    """Where the driver put something."""

    name: str
    """``input 0``, ``output 1``, ``workspace``."""
    address: int
    nbytes: int


@dataclass(frozen=True)
class Notes:
    """The driver's notes (``include/forge_driver.cpp``), as far as it came."""

    ready: bool = False
    """It was able to begin: from here on, what happens is the candidate's doing."""
    done: bool = False
    """Every run came to its end."""
    failed: str = ""
    """``what: why``, for what the driver itself could not do."""
    run: int = -1
    """The last run that was begun."""
    launches: int = 0
    """Launches that returned, over all runs."""
    code: int = 0
    """What the last of them returned."""
    buffers: tuple[Buffer, ...] = ()
    """Of the last run."""
    untouched: tuple[int, ...] = ()
    """Outputs of the last run that no launch has written to, once per launch."""


def read_notes(text: str) -> Notes:
    """Lines that are not notes are left out."""
    facts: dict[str, str] = {}
    run, launches, buffers, untouched = -1, 0, list[Buffer](), list[int]()
    for line in text.splitlines():
        event, _, rest = line.partition(" ")
        if event == "tensor" and (
            match := re.fullmatch(r"(0x[0-9a-f]+|\(nil\)) (\d+) (input|output|workspace) (\d+)", rest)
        ):
            name = match[3] if match[3] == "workspace" else f"{match[3]} {match[4]}"
            buffers.append(Buffer(name, 0 if match[1] == "(nil)" else int(match[1], 16), int(match[2])))
        elif event == "failed":
            facts["failed"] = rest
        elif re.fullmatch(r"-?\d+", rest):
            facts[event] = rest
            if event == "run":
                run, buffers, untouched = int(rest), [], []
            elif event == "code":
                launches += 1
            elif event == "untouched":
                untouched.append(int(rest))
    return Notes(
        ready="ready" in facts,
        done="done" in facts,
        failed=facts.get("failed", ""),
        run=run,
        launches=launches,
        code=int(facts.get("code", "0")),
        buffers=tuple(buffers),
        untouched=tuple(untouched),
    )


def host_finding(text: str, notes: Notes) -> str:
    """The first report of AddressSanitizer or UndefinedBehaviorSanitizer; empty if there is none."""
    undefined = re.search(r"^(\S*?:\d+):\d+: runtime error: (.+)$", text, re.MULTILINE)
    address = re.search(
        r"ERROR: AddressSanitizer: (.+?)(?: on (?:unknown )?address (0x[0-9a-f]+)\b.*| \(0x.*)?$", text, re.MULTILINE
    )
    if undefined and (address is None or undefined.start() < address.start()):
        return f"{undefined[2]}, {_base(undefined[1])}"
    if address is None:
        return ""
    rest = text[address.start() :]
    access = re.search(r"^(READ|WRITE) of size (\d+)", rest, re.MULTILINE)
    fault = re.search(r"caused by a (READ|WRITE) memory access", rest)
    words = [re.sub(r": 0x[0-9a-f]+ in thread.*", "", address[1]).strip()]
    if access:
        verb = "reads" if access[1] == "READ" else "writes"
        words = [
            f"{verb} {access[2]} bytes",
            _place(int(address[2], 16), notes.buffers) if address[2] else "",
            f"({words[0]})",
        ]
    elif fault:
        words.append(f"when {'reading' if fault[1] == 'READ' else 'writing'}")
        words.append(f"{address[2]}" if address[2] else "")
    return ", ".join(part for part in (" ".join(filter(None, words)), _host_frame(rest)) if part)


def _host_frame(report: str) -> str:
    """``kernel.cpp:12`` of the innermost frame in the candidate's source, else the innermost function."""
    for source in SOURCES:
        if match := re.search(rf"^\s+#\d+ 0x[0-9a-f]+ in .*?({re.escape(source)}:\d+)", report, re.MULTILINE):
            return match[1]
    match = re.search(r"^\s+#0 0x[0-9a-f]+ in (\S+)", report, re.MULTILINE)
    return f"in {match[1]}" if match else ""


@dataclass(frozen=True)
class DeviceReport:
    """What one run of compute-sanitizer says."""

    complete: bool
    """It came to its summary."""
    finding: str
    """The first error; empty if there is none."""
    broken: str = ""
    """Why the tool itself cannot be relied on; empty if it can."""


_BROKEN = re.compile(
    r"Internal Sanitizer Error|Device not supported|not supported by|Unable to|Failed to|No attachable process"
    r"|Insufficient driver|terminated before first instrumented API call"
)
_SUMMARY = re.compile(r"^(?:ERROR SUMMARY: (\d+) errors?|RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) errors?.*)$")
_NOT_FINDINGS = re.compile(
    r"COMPUTE-SANITIZER$|.* SUMMARY: |(?i:warning)\b|Error: process didn't terminate|Target application returned"
)


def device_report(text: str, buffers: Sequence[Buffer]) -> DeviceReport:
    """The report of ``compute-sanitizer --tool memcheck`` (or racecheck, initcheck, synccheck)."""
    lines = [match[1].rstrip() for line in text.splitlines() if (match := re.match(r"\s*========= ?(.*)$", line))]
    errors, complete = 0, False
    for line in lines:
        if match := _SUMMARY.match(line):
            errors, complete = errors + int(match[1] or match[2]), True
    broken = next((line for line in lines if _BROKEN.search(line)), "")
    if not errors and complete:
        return DeviceReport(True, "", broken)
    start = next((k for k, line in enumerate(lines) if line[:1].strip() and not _NOT_FINDINGS.match(line)), None)
    if start is None or (broken and not errors):
        return DeviceReport(complete, "an error without a report" if errors else "", broken)
    block = [lines[start]]
    for line in lines[start + 1 :]:
        if not line.startswith(" ") or "Saved host backtrace" in line:
            break
        block.append(line)
    return DeviceReport(complete, _device_words(block, buffers), broken)


def _device_words(block: Sequence[str], buffers: Sequence[Buffer]) -> str:
    head = re.sub(r"^Error: |^ERROR: ", "", block[0].strip())
    words = [re.sub(r"(\S+)\+0x[0-9a-f]+ in (\S+)", lambda m: f"{m[1]} ({_base(m[2])})", head)]
    for line in (line.strip() for line in block[1:]):
        if match := re.match(r"at (.+?)(?:\+|:)0x[0-9a-f]+(?: in (\S+))?$", line):
            words.append(f"in {match[1]}" + (f" ({_base(match[2])})" if match[2] else ""))
        elif match := re.match(r"and (Read|Write) access at (.+?)\+0x[0-9a-f]+(?: in (\S+))?", line):
            words[0] += f" and {match[1]} access at {match[2]}" + (f" ({_base(match[3])})" if match[3] else "")
        elif match := re.match(r"by (thread .+)$", line):
            words.append(match[1])
        elif (match := re.match(r"(?:Address|Access (?:at|to)) (0x[0-9a-f]+)\b(.*)$", line)) and (
            place := _place(int(match[1], 16), buffers)
        ):
            words.append(f"{place}{' (misaligned)' if 'misaligned' in match[2] else ''}")
    return ", ".join(words)


def _place(address: int, buffers: Sequence[Buffer]) -> str:
    """``0 bytes past the end of input 1``, for the nearest buffer; empty if none is near."""
    best: tuple[int, str] | None = None
    for b in (b for b in buffers if b.nbytes):
        if address < b.address:
            found = (b.address - address, f"{b.address - address} bytes before {b.name}")
        elif address >= b.address + b.nbytes:
            past = address - b.address - b.nbytes
            found = (past, f"{past} bytes past the end of {b.name}")
        else:
            return f"in {b.name} at byte {address - b.address}"
        best = min(best, found) if best else found
    return best[1] if best and best[0] <= NEAR_BYTES else ""


def _base(place: str) -> str:
    """``kernel.cpp:12`` of a path with a line."""
    return place.rpartition("/")[2]
