"""The gate "source" for C++ and CUDA: a kernel's text, read as tokens."""

from __future__ import annotations

from torch_forge.records.source_text import read_source
from torch_forge.validation.static.assembly import assembly
from torch_forge.validation.static.declarations import declarations
from torch_forge.validation.static.finding import Finding, rejecting, tidy
from torch_forge.validation.static.lexical import oddities
from torch_forge.validation.static.names import names
from torch_forge.validation.static.preprocessor import directives


def source_findings(text: str, backend: str) -> list[Finding]:
    """What a kernel's source for ``backend`` (``cuda`` or ``cpu``) contains that a kernel has no reason to contain."""
    read = read_source(text)
    return tidy([
        *oddities(text, read), *directives(read), *names(read), *declarations(read), *assembly(read, backend),
    ])  # fmt: skip


def source_reasons(text: str, backend: str) -> list[str]:
    """Why a source is refused, one line each; empty if it is not."""
    return [str(f) for f in rejecting(source_findings(text, backend))]
