"""Read compiler logs: the line that matters out of three hundred, and whether it is the candidate's fault at all.

A source that does not compile is the next prompt's business; a toolkit that refuses the host compiler, or a full disk, would
refuse every candidate, so tuning must stop at once and name the setting to change.
"""

from __future__ import annotations

import re

ERROR_LINES = 3
"""As many errors as are worth showing: the later ones usually follow from the first."""
LINE_CHARS = 400

ERRORS = (
    re.compile(r"^.*host_config\.h.*(#error|error:).*$"),
    re.compile(r"^\S.*?(\(\d+\)|:\d+(:\d+)?):? (fatal )?error\b.*$"),  # file(12): error ..., file:12:5: error: ...
    re.compile(r"^nvcc (fatal|error)\s*:.*$"),
    re.compile(r"^ptxas (fatal|error)\s*:.*$|^ptxas .*; error\s*:.*$"),
    re.compile(r"^\S*(ld|collect2|cc1plus|g\+\+|clang\+\+|c\+\+)\S*: (fatal )?(error|cannot find).*$"),
    re.compile(r"^.*undefined reference to.*$"),
    re.compile(r"^.*undefined symbol.*$"),
    re.compile(r"^Fatal Python error: .*$"),
    re.compile(r"^(\w+Error|MemoryError)(: .*)?$"),
    re.compile(r"^(?!\s*\d* ?\|).*(No space left|quota exceeded|Cannot allocate memory|temporarily unavailable).*$"),
    re.compile(r"^(?!\s*\d* ?\|).*([Kk]illed$|Killed signal|: not found$).*$"),
)
"""Forms of an error line; within a log the order of the lines decides."""

KILLED = re.compile(
    r"Killed signal terminated program|died due to signal 9|\[code=137\]|^Killed$"
    r"|virtual memory exhausted|out of memory allocating",
    re.MULTILINE,
)
"""What compilers say when the kernel's out-of-memory killer, or their own limit, got them."""

IN_SOURCE = re.compile(r"(main\.cpp|cuda\.cu)[:(]\d+(?!.*: fatal error: )")
"""A complaint about the candidate's own text. It may quote anything there (``#error No space left on device``)."""

ENVIRONMENTAL: tuple[tuple[str, str], ...] = (
    (
        r"host_config\.h.*unsupported (GNU|clang) version",
        "This nvcc does not accept this host compiler. Set CXX to an older g++ or CUDA_HOME to a newer toolkit.",
    ),
    (
        r"^nvcc fatal\s*: (Unsupported gpu architecture|Value '(sm|compute)_\w+' is not defined)",
        "This nvcc does not know the GPU. Set CUDA_HOME to a newer toolkit, or TORCH_CUDA_ARCH_LIST to, say, '9.0+PTX'.",
    ),
    (
        r"^nvcc fatal\s*: (Failed to preprocess host compiler|Host compiler targets unsupported|.*ccbin)",
        "nvcc cannot use this host compiler. Set CXX to a g++ that works with this toolkit.",
    ),
    (
        r"No space left on device|Disk quota exceeded",
        "The disk is full. Free some space, or set TORCH_FORGE_CACHE_DIR and TMPDIR to a larger one.",
    ),
    (
        r"^\S+:\d+:\d+: fatal error: (cuda_runtime\.h|crt/\S+|c?stdint(\.h)?|cmath|bits/c\S+): No",
        "The compiler does not find its own headers. Reinstall it, or set CXX or CUDA_HOME to a complete one.",
    ),
    (
        r"error trying to exec 'cc1plus'|cannot execute .?cc1plus|(cicc|ptxas|cudafe\+\+): not found",
        "The compiler is installed only in part. Reinstall it, or set CXX or CUDA_HOME to a complete one.",
    ),
    (
        r"Resource temporarily unavailable",
        "No more processes can be started. Set MAX_JOBS to a smaller number, or raise the process limit (ulimit -u).",
    ),
    (
        r"(cannot find|unable to find library) -l(cudart|gomp|omp|c10|torch)\b",
        "A library that every kernel needs is missing. Reinstall the CUDA runtime or the compiler's OpenMP library.",
    ),
)
"""What no other candidate would survive either, and the setting to change."""


def root_cause(log: str) -> str:
    """The first few error lines of a compiler's or linker's log, each once; the last line if none reads like an error."""
    lines = [line.rstrip() for line in log.splitlines() if line.strip()]
    found: list[str] = []
    for line in lines:
        text = line.strip()
        if any(form.match(text) for form in ERRORS) and text[:LINE_CHARS] not in found:
            found.append(text[:LINE_CHARS])
    specific = [text for text in found if not _is_summary(text)]
    chosen = (specific or found)[:ERROR_LINES]
    return "\n".join(chosen) if chosen else (lines[-1].strip()[:LINE_CHARS] if lines else "")


def environmental(log: str) -> str | None:
    """What to change if the machine is to blame, whatever the source; None if the source may be."""
    lines = [line for line in log.splitlines() if not IN_SOURCE.search(line)]
    errors = "\n".join(line for line in lines if any(form.match(line.strip()) for form in ERRORS))
    return next((advice for pattern, advice in ENVIRONMENTAL if re.search(pattern, errors, re.MULTILINE)), None)


def was_killed(log: str) -> bool:
    """Whether memory ran out under the compiler, so that it deserves another try with the machine to itself."""
    return KILLED.search(log) is not None


def _is_summary(line: str) -> bool:
    """Lines that only repeat that there was an error."""
    return bool(re.match(r"collect2: error: ld returned|RuntimeError: Error building extension|CalledProcessError", line))
