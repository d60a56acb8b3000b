"""A trial as words for the model: the evidence in full for the one to repair, one line for the others.

Compiler logs are reduced to the first errors with their source lines, since one mistake often brings hundreds of
followers, and lose their directories, since those name the user's machine.
"""

from __future__ import annotations

import re
import signal

from torch_forge.records.kernels import BuildFailed, Built
from torch_forge.records.outcomes import Comparison, Crashed, Mismatch, Passed, Refused, TimedOut, Trial

LOG_LINES = 60
LINE_CHARS = 300
_ERROR = re.compile(r"\b(?:error|undefined reference|undefined symbol|ptxas fatal)\b", re.IGNORECASE)
_DIRECTORY = re.compile(r"(?:(?<![\w.:/])|(?<=-[ILB]))/(?:[^\s/:'\"()<>]+/)+(?=[^\s/:'\"()<>]+)")


def evidence(trial: Trial) -> str:
    """All that the judge found, over several lines."""
    match trial.build:
        case BuildFailed(exit_status=status, log=log):
            return f"It did not compile (exit status {status}).\n{root_errors(log)}"
        case Crashed() | TimedOut():
            return f"The compiler itself failed: {_verdict_text(trial.build)}"
        case Refused():
            return f"It was not run. {_verdict_text(trial.build)}"
    if trial.verdict is None:
        return "It compiled and was not run."
    if isinstance(trial.verdict, Passed):
        return "\n".join(["It is right on every case.", *(_timing(c) for c in trial.comparisons), *_resources(trial)])
    return _verdict_text(trial.verdict)


def one_line(trial: Trial) -> str:
    """Who, what came of it, the deciding figure."""
    first, *_ = evidence(trial).splitlines() or [""]
    if isinstance(trial.build, BuildFailed):
        first = next((line for line in root_errors(trial.build.log).splitlines() if _ERROR.search(line)), first)
    if trial.best is not None:
        first = _timing(trial.best)
    return f"{trial.candidate.origin.value} {trial.candidate.author}, {trial.outcome}: {first[:LINE_CHARS]}"


def root_errors(log: str) -> str:
    """The first errors of a compiler log, each with the lines that show where; the log's end if none is marked."""
    lines = [without_directories(line)[:LINE_CHARS] for line in log.splitlines() if line.strip()]
    starts = [k for k, line in enumerate(lines) if _ERROR.search(line)]
    if not starts:
        return "\n".join(lines[-LOG_LINES:])
    kept = sorted({k for start in starts[:8] for k in range(max(0, start - 1), min(len(lines), start + 4))})[:LOG_LINES]
    more = len(starts) - 8
    tail = [f"({more} more errors, probably consequences)"] if more > 0 else []
    return "\n".join([lines[k] for k in kept] + tail)


def without_directories(text: str) -> str:
    """Absolute paths reduced to the file name."""
    return _DIRECTORY.sub("", text)


def _verdict_text(verdict: Mismatch | Crashed | TimedOut | Refused) -> str:
    match verdict:
        case Mismatch():
            return _mismatch(verdict)
        case Crashed():
            how = f"signal {_signal_name(verdict.signal)}" if verdict.signal else f"exit status {verdict.exit_status}"
            return f"The process died: {how}.\n{_tail(verdict.log)}".rstrip()
        case TimedOut():
            return f"No answer within {verdict.limit_s:g} seconds; the process was killed.\n{_tail(verdict.log)}".rstrip()
        case Refused():
            what = f"forge_launch returned {verdict.code}" if verdict.code else f"Refused by the gate {verdict.gate!r}"
            return f"{what}: {without_directories(verdict.reason)}"


def _mismatch(m: Mismatch) -> str:
    return (
        f"Wrong result: {m.reason}\n"
        f"Case {m.case!r}, out[{m.output}] at index {list(m.index)}: got {m.got!r}, expected {m.expected!r} (float64), "
        f"eager gives {m.eager!r}. {m.bad_elements} of {m.total_elements} elements are wrong."
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _tail(log: str) -> str:
    return "\n".join(without_directories(line)[:LINE_CHARS] for line in log.splitlines()[-20:])


def _timing(c: Comparison) -> str:
    return (
        f"config {c.config}: {c.candidate.median_us:.2f} us "
        f"(95 % interval {c.candidate.low_us:.2f} to {c.candidate.high_us:.2f}), "
        f"eager {c.eager.median_us:.2f} us, {c.ratio:.2f}x eager's speed"
    )


def _resources(trial: Trial) -> list[str]:
    if not isinstance(trial.build, Built) or not trial.build.resources:
        return []
    return ["compiler: " + ", ".join(f"{name} {value}" for name, value in sorted(trial.build.resources.items()))]
