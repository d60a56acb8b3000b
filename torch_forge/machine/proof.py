"""Prove a compiler by using it, and keep the one line of its output that says why it failed."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch_forge.machine.files import remove_tree
from torch_forge.machine.leftovers import owned_folder
from torch_forge.machine.process import run

CHECK_TIMEOUT_S = 120.0
VERSION_TIMEOUT_S = 20.0
ENGLISH = {"LC_ALL": "C"}
"""The language in which compilers' messages are read."""

_COMPLAINT = re.compile(r"error|fatal|cannot|not found|no such|killed|does not|failed", re.IGNORECASE)


def compile_problem(command: Sequence[str], source: str, name: str) -> str:
    """Why ``command`` cannot compile ``source``, written to a file ``name``, into a file; one line, empty if it can."""
    try:
        folder = owned_folder()
        try:
            (folder / name).write_text(source)
            done = run((*command, name, "-o", "check.out"), cwd=folder, timeout_s=CHECK_TIMEOUT_S, env=ENGLISH)
        finally:
            remove_tree(folder)
    except OSError as error:
        return f"its trial could not begin: {error.strerror or error}"
    if done.ok:
        return ""
    if done.timed_out:
        return f"did not compile an empty file within {CHECK_TIMEOUT_S:g} s"
    return first_complaint(done.output) or f"ended with status {done.exit_status} and no message"


def first_complaint(output: str) -> str:
    """The first line that reads like an error, else the last line; at most 300 characters."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next((line for line in lines if _COMPLAINT.search(line)), lines[-1] if lines else "")[:300]


def note(what: str, problem: str) -> str:
    """One line about a candidate, for ``torch-forge doctor``."""
    return f"refused {what}: {problem}" if problem else f"taken {what}"
