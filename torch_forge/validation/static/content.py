"""What a library holds: code where there should be none, data in code, names of others, more data than its source."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator

from torch_forge.validation.static.allowed import stands_in
from torch_forge.validation.static.elf import ALLOCATED, EXECUTABLE, WRITABLE, Library, Section
from torch_forge.validation.static.finding import Finding
from torch_forge.validation.static.machine_code import system_calls

ENTRY_POINT = "forge_launch"
_CODE = re.compile(r"\.(?:text|init|fini|plt)(?:\.\w+)*|\.iplt")
_NOT_SOURCE = re.compile(
    r"\.(?:eh_frame\w*|gcc_except_table|dyn\w+|gnu\.\w+|hash|rela?\.\w+|relr\.dyn|got\w*|nv\w+|note\S*|interp|dynamic"
    r"|(?:init|fini)_array)|__nv_\w+"
)
BANK_BYTES = 16 * 1024
"""So much data, compressed, may come with any source: tables that a compiler computes."""
STATE_BYTES = 1 << 20
_EXECUTE, _WRITE = 1, 2


def content(library: Library, source_bytes: int | None) -> Iterator[Finding]:
    """Findings on sections and symbols. source_bytes: length of the source; None skips the rule that compares with it."""
    for kind, flags in library.segments:
        if kind == "PT_GNU_STACK" and flags & _EXECUTE:
            yield Finding(0, "memory", "stack", "can be executed")
        elif kind == "PT_LOAD" and flags & _EXECUTE and flags & _WRITE:
            yield Finding(0, "memory", "segment", "can be written and executed")
    for index, section in enumerate(library.sections):
        if section.flags & EXECUTABLE:
            yield from _code(library, index, section)
    yield from _names(library)
    yield from _data(library, source_bytes)


def _code(library: Library, index: int, section: Section) -> Iterator[Finding]:
    if not _CODE.fullmatch(section.name):
        yield Finding(0, "section", section.name, "is code outside the sections that compilers use")
    here = [s for s in library.symbols if s.section == index]
    for symbol in here:
        if symbol.type == "STT_OBJECT":
            yield Finding(0, "hidden code", symbol.name, "is data between the code, where it can be executed")
    starts = sorted({s.value - section.address for s in here if s.type in {"STT_FUNC", "STT_NOTYPE"}})
    for at, proven in system_calls(section.data, starts, library.machine):
        owner = max((s for s in here if s.value <= section.address + at), key=lambda s: s.value, default=None)
        name = owner.name if owner is not None and owner.name else section.name
        why = "enters the system directly" if proven else "holds the bytes of a system call inside an instruction"
        yield Finding(0, "system call", name, why, rejects=proven)


_DELETES = re.compile(r"_Zd[la]P")
_RUNTIME = re.compile(r"_Z(?:d[la]|n[wa]|St|NSt|NKSt|T[ISV]|GTt)|__cxa_|__gxx_|__dynamic_cast")


def _names(library: Library) -> Iterator[Finding]:
    exported = [s for s in library.dynamic_symbols if s.section and s.bind in {"STB_GLOBAL", "STB_LOOS"} and s.visible]
    if not any(s.name == ENTRY_POINT and s.type == "STT_FUNC" for s in exported):
        yield Finding(0, "entry point", ENTRY_POINT, "is not exported as a function")
    whole = any(s.name.startswith("__cxa_throw") for s in exported)
    for symbol in exported:
        if symbol.name != ENTRY_POINT and stands_in(symbol.name):
            # A g++ that links its runtime into every library leaves that in it; loaded locally, it serves nobody else.
            ours = (_RUNTIME if whole else _DELETES).match(symbol.name) is None
            yield Finding(0, "export", symbol.name, "is defined here and is what other libraries look for", rejects=ours)


def _data(library: Library, source_bytes: int | None) -> Iterator[Finding]:
    held = [
        s for s in library.sections if s.flags & ALLOCATED and not s.flags & EXECUTABLE and not _NOT_SOURCE.fullmatch(s.name)
    ]
    constants = [s for s in held if s.data]
    if source_bytes is not None:
        for section in constants:
            if section.size > BANK_BYTES + source_bytes:
                packed = len(zlib.compress(section.data, 1))
                if packed > BANK_BYTES + source_bytes:
                    why = f"holds {section.size} bytes that a source of {source_bytes} does not explain"
                    yield Finding(0, "data", section.name, why, rejects=False)
    state_bytes = sum(s.size for s in held if s.flags & WRITABLE)
    if state_bytes > STATE_BYTES:
        yield Finding(0, "state", f"{state_bytes} bytes", "are kept between calls", rejects=False)
