"""A shared library as plain data: what the rules of the gate "binary" look at. Nothing is loaded."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXECUTABLE, WRITABLE, ALLOCATED = 4, 1, 2
"""Section flags."""
IFUNC_TYPES = frozenset({"STT_LOOS", "STT_GNU_IFUNC"})


@dataclass(frozen=True, slots=True)
class Symbol:
    """One entry of a symbol table."""

    name: str
    value: int
    size: int
    type: str
    """``STT_FUNC``, ``STT_OBJECT`` ..."""
    bind: str
    visible: bool
    section: int
    """Index; 0 if it is not defined here."""
    file: str
    """The source file that a local symbol comes from, as the compiler wrote it."""


@dataclass(frozen=True, slots=True)
class Section:
    """One section with its bytes; empty for those that have none in the file."""

    name: str
    type: str
    flags: int
    address: int
    size: int
    data: bytes

    def holds(self, address: int) -> bool:
        """Whether an address lies in it."""
        return self.address <= address < self.address + self.size


@dataclass(frozen=True, slots=True)
class Relocation:
    """A word that the loader writes."""

    at: int
    kind: int
    symbol: str
    """Empty for one relative to where the library is loaded."""
    addend: int


@dataclass(frozen=True)
class Library:
    """One shared library."""

    machine: str
    """``x64``, ``AArch64`` ..."""
    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]
    """All of them; only the dynamic ones where it was stripped."""
    dynamic_symbols: tuple[Symbol, ...]
    stripped: bool
    dynamic: tuple[tuple[str, str | int], ...]
    """(tag, value); names of libraries and paths as text."""
    relocations: tuple[Relocation, ...]
    segments: tuple[tuple[str, int], ...]
    """(type, flags: 1 execute, 2 write)."""

    def section(self, name: str) -> Section | None:
        """The first of that name."""
        return next((s for s in self.sections if s.name == name), None)

    def functions_at(self, address: int) -> list[Symbol]:
        """Symbols of code that begin there."""
        return [s for s in self.symbols if s.section and s.value == address and s.type in {"STT_FUNC", *IFUNC_TYPES}]

    def words(self, section: Section) -> Iterator[tuple[int, str]]:
        """(address, name of a symbol or empty) that the words of a section hold once the loader has been there."""
        by_place: Mapping[int, Relocation] = {r.at: r for r in self.relocations}
        for offset in range(0, len(section.data) - 7, 8):
            relocation = by_place.get(section.address + offset)
            if relocation is None:
                yield int.from_bytes(section.data[offset : offset + 8], "little"), ""
            else:
                yield relocation.addend, relocation.symbol


class NotALibrary(ValueError):  # noqa: N818 (it is what was found, not an accident)
    """The file cannot be read as a shared library."""


def read_library(path: str | Path) -> Library:
    """Raises NotALibrary, and OSError if there is no such file."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    data = Path(path).read_bytes()
    try:
        file = ELFFile(io.BytesIO(data))
        if file.header["e_type"] != "ET_DYN" or file.elfclass != 64 or not file.little_endian:
            raise NotALibrary("it is not a shared library of 64 bits, little-endian")
        return _library(file)
    except (ELFError, UnicodeDecodeError) as error:
        raise NotALibrary(f"it cannot be read: {error}") from error


def _library(file: Any) -> Library:
    from elftools.elf.dynamic import DynamicSection
    from elftools.elf.relocation import RelocationSection, RelrRelocationSection

    raw = list(file.iter_sections())
    table = {s.name: s for s in raw}
    dynamic_symbols = tuple(_symbols(table.get(".dynsym")))
    symbols = tuple(_symbols(table.get(".symtab")))
    names = [s.name for s in dynamic_symbols]
    relocations: list[Relocation] = []
    for section in raw:
        if isinstance(section, RelrRelocationSection):
            relocations += _packed(file, section)
        elif isinstance(section, RelocationSection) and section.is_RELA() and section.header["sh_flags"] & ALLOCATED:
            for entry in section.iter_relocations():
                index = entry["r_info_sym"]
                relocations.append(
                    Relocation(entry["r_offset"], entry["r_info_type"], names[index] if index else "", entry["r_addend"])
                )
    tags: list[tuple[str, str | int]] = []
    for section in raw:
        if isinstance(section, DynamicSection):
            for tag in section.iter_tags():
                text = next((getattr(tag, a) for a in ("needed", "rpath", "runpath", "soname") if hasattr(tag, a)), None)
                tags.append((str(tag.entry.d_tag), text if text is not None else int(tag.entry.d_val)))
    return Library(
        machine=str(file.get_machine_arch()),
        sections=tuple(_section(s) for s in raw),
        symbols=symbols or dynamic_symbols,
        dynamic_symbols=dynamic_symbols,
        stripped=not symbols,
        dynamic=tuple(tags),
        relocations=tuple(relocations),
        segments=tuple((str(p["p_type"]), int(p["p_flags"])) for p in file.iter_segments()),
    )


def _section(section: Any) -> Section:
    header = section.header
    empty = header["sh_type"] in {"SHT_NOBITS", "SHT_NULL"}
    return Section(
        section.name, str(header["sh_type"]), header["sh_flags"], header["sh_addr"], header["sh_size"],
        b"" if empty else section.data(),
    )  # fmt: skip


def _symbols(section: Any) -> Iterator[Symbol]:
    """All symbols, each local one with the file it follows."""
    if section is None:
        return
    file = ""
    for symbol in section.iter_symbols():
        info, index = symbol["st_info"], symbol["st_shndx"]
        kind = str(info["type"])
        if kind == "STT_FILE":
            file = symbol.name
        yield Symbol(
            symbol.name,
            symbol["st_value"],
            symbol["st_size"],
            kind,
            str(info["bind"]),
            symbol["st_other"]["visibility"] == "STV_DEFAULT",
            index if isinstance(index, int) else 0 if index == "SHN_UNDEF" else -1,
            file,
        )


def _packed(file: Any, section: Any) -> Iterator[Relocation]:
    """Relative relocations in the packed form: what is added stands at the place itself."""
    for entry in section.iter_relocations():
        at = entry["r_offset"]
        holder = next(
            (s for s in file.iter_sections() if s["sh_addr"] <= at < s["sh_addr"] + s["sh_size"] and s["sh_addr"]), None
        )
        value = int.from_bytes(holder.data()[at - holder["sh_addr"] :][:8], "little") if holder is not None else 0
        yield Relocation(at, 0, "", value)
