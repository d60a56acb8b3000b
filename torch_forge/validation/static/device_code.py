"""What a library carries for the GPU: the functions of the device runtime that its kernels call."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator

from torch_forge.validation.static.elf import Library
from torch_forge.validation.static.finding import Finding

_MAGIC = 0xBA55ED50
_HEADER = struct.Struct("<IHHQ")
"""Magic, version, bytes of this header, bytes of the entries behind it."""
_ENTRY = struct.Struct("<HHIQ")
"""Kind (1 PTX, 2 machine code), version, bytes of this header, bytes behind it."""
_RUNTIME = {
    "vprintf": ("prints from the device", True),
    "malloc": ("allocates on the device; a kernel has only `workspace` and shared memory", True),
    "free": ("allocates on the device; a kernel has only `workspace` and shared memory", True),
    "__assertfail": ("stops the device where an assertion fails", False),
}


def device_findings(library: Library) -> Iterator[Finding]:
    """Findings on the device code of a CUDA kernel; a note where it cannot be read."""
    section = library.section(".nv_fatbin")
    if section is None or not section.data:
        yield Finding(0, "device code", ".nv_fatbin", "is missing: the kernel has no device code", rejects=False)
        return
    for payload in _payloads(section.data):
        if payload is None or payload[:4] != b"\x7fELF":
            yield Finding(0, "device code", "PTX or compressed code", "is not available to this check", rejects=False)
        else:
            yield from _called(payload)


def _payloads(data: bytes) -> Iterator[bytes | None]:
    """Each piece of device code; None for what does not follow the known layout."""
    at = 0
    while at + _HEADER.size <= len(data):
        magic, _, header_bytes, size = _HEADER.unpack_from(data, at)
        if magic != _MAGIC or header_bytes < _HEADER.size:
            yield None
            return
        end = min(at + header_bytes + size, len(data))
        at += header_bytes
        while at + _ENTRY.size <= end:
            _, _, entry_bytes, entry_size = _ENTRY.unpack_from(data, at)
            if entry_bytes < _ENTRY.size:
                yield None
                return
            yield data[at + entry_bytes : at + entry_bytes + entry_size]
            at += entry_bytes + entry_size
        at = -(-end // 8) * 8


def _called(cubin: bytes) -> Iterator[Finding]:
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        table = ELFFile(io.BytesIO(cubin)).get_section_by_name(".symtab")
        missing = [s.name for s in table.iter_symbols() if s["st_shndx"] == "SHN_UNDEF"] if table is not None else []
    except ELFError as error:
        yield Finding(0, "device code", "machine code", f"cannot be read: {error}")
        return
    for name in missing:
        if name and not name.startswith((".nv", "__nv_reserved")):
            why, rejects = _RUNTIME.get(name, ("is not among the device functions that a kernel needs", True))
            yield Finding(0, "device code", name, why, rejects)
