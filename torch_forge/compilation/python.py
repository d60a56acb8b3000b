"""Python candidates need no compiler, only to be Python: the file is parsed and put where a worker finds it."""

from __future__ import annotations

import ast
import tempfile
from pathlib import Path

from torch_forge.machine.files import private_dir, sha256_file
from torch_forge.records.kernels import BuildFailed, Built, Candidate


def stage_python(candidate: Candidate, staging_root: Path) -> Built | BuildFailed:
    """The candidate as a file in a private directory of ``staging_root``; nothing of it is run."""
    try:
        ast.parse(candidate.source)
    except (SyntaxError, ValueError) as error:
        return BuildFailed(candidate, (), 1, f"not Python: {error}", 0.0)
    folder = Path(tempfile.mkdtemp(prefix="python-", dir=private_dir(staging_root).absolute()))
    path = folder / "candidate.py"
    path.write_text(candidate.source)
    return Built(candidate, str(path), sha256_file(path), 0.0, {})
