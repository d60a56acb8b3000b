"""The gate "binary": a built library, read as a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torch_forge.validation.static.allowed import objection
from torch_forge.validation.static.content import content
from torch_forge.validation.static.device_code import device_findings
from torch_forge.validation.static.elf import Library, NotALibrary, read_library
from torch_forge.validation.static.finding import Finding, rejecting, tidy
from torch_forge.validation.static.loading import loading


def binary_findings(path: str | Path, backend: str, *, source_bytes: int | None = None) -> list[Finding]:
    """What a library built for ``backend`` (``cuda`` or ``cpu``) imports or contains outside the kernel contract.

    source_bytes: length of its source; data that it does not explain are a note. Raises OSError if there is no such file.
    """
    try:
        library = read_library(path)
    except NotALibrary as error:
        return [Finding(0, "object", Path(path).name, str(error))]
    device = device_findings(library) if backend == "cuda" else ()
    return tidy([*_imports(library, backend), *loading(library, backend), *content(library, source_bytes), *device])


def binary_reasons(path: str | Path, backend: str, *, source_bytes: int | None = None) -> list[str]:
    """Why a built library is refused, one line each; empty if it is not."""
    return [str(f) for f in rejecting(binary_findings(path, backend, source_bytes=source_bytes))]


def _imports(library: Library, backend: str) -> Iterator[Finding]:
    for symbol in library.dynamic_symbols:
        if symbol.name and not symbol.section and (found := objection(symbol.name, backend)) is not None:
            yield Finding(0, "import", symbol.name, found.why, found.rejects)
