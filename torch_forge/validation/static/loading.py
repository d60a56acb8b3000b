"""What happens when a library is loaded: code that runs, names that are resolved by code, libraries that come along."""

from __future__ import annotations

from collections.abc import Iterator

from torch_forge.validation.static.allowed import NEEDED, NEEDED_CUDA
from torch_forge.validation.static.elf import IFUNC_TYPES, Library, Section
from torch_forge.validation.static.finding import Finding

_CRT = frozenset({"crtstuff.c", "crtbegin.c", "crtbeginS.c", "crt1.c"})
_OURS = {".init_array": "frame_dummy", ".fini_array": "__do_global_dtors_aux"}
"""What the compiler's own start files put there."""
_REGISTERS_KERNELS = frozenset({"_ZL24__sti____cudaRegisterAllv", "_ZL22__sti____cudaRegisterAllv"})
_HELPERS = {"__cpu_indicator_init": "cpuinfo.", "init_have_lse_atomics": "lse-init."}
"""The compiler's support library looks at the processor while loading: name -> the object that it comes in."""
_INITIALISERS = ("_GLOBAL__sub_I_", "_GLOBAL__I_", "_GLOBAL__sub_D_", "__cxx_global_var_init")
_STUB_BYTES = 48
""".init and .fini hold a few instructions of the compiler's start files, and nothing else."""
_TEXTREL, _ORIGIN_PATHS = 4, ("$", ".")
_IRELATIVE = {"x64": 37, "AArch64": 1032}
_BAD_TAGS = {
    "DT_AUDIT": "watches the loader", "DT_DEPAUDIT": "watches the loader", "DT_FILTER": "stands in for another library",
    "DT_AUXILIARY": "stands in for another library", "DT_TEXTREL": "is code that the loader rewrites",
    "DT_PREINIT_ARRAY": "runs code outside forge_launch",
}  # fmt: skip


def loading(library: Library, backend: str) -> Iterator[Finding]:
    """Findings on the dynamic section, start-up code and resolvers. backend: ``cpu`` or ``cuda``."""
    for tag, value in library.dynamic:
        yield from _tag(tag, value, backend)
    for section in library.sections:
        if section.type in {"SHT_INIT_ARRAY", "SHT_FINI_ARRAY", "SHT_PREINIT_ARRAY"} or section.name in {".ctors", ".dtors"}:
            yield from _started(library, section)
        elif section.name in {".init", ".fini"} and section.size > _STUB_BYTES:
            yield Finding(0, "constructor", section.name, "holds more than the compiler's own start-up code")
    yield from _resolvers(library)


def _tag(tag: str, value: str | int, backend: str) -> Iterator[Finding]:
    if tag == "DT_NEEDED":
        name = str(value)
        if not NEEDED.fullmatch(name) and not (backend == "cuda" and NEEDED_CUDA.fullmatch(name)):
            yield Finding(0, "needed", name, "is a library that a kernel does not need")
    elif tag in {"DT_RPATH", "DT_RUNPATH"}:
        relative = any(not p or p.startswith(_ORIGIN_PATHS) for p in str(value).split(":"))
        yield Finding(0, "search path", str(value), "is searched for libraries first", rejects=relative)
    elif tag in _BAD_TAGS or (tag == "DT_FLAGS" and int(value) & _TEXTREL):
        yield Finding(0, "loader", tag, _BAD_TAGS.get(tag, "is code that the loader rewrites"))


def _started(library: Library, section: Section) -> Iterator[Finding]:
    """Entries beside the compiler's own and the one that registers CUDA kernels."""
    for address, imported in library.words(section):
        symbols = library.functions_at(address)
        names = [s.name for s in symbols]
        if not imported and any(s.name == _OURS.get(section.name) and s.file in _CRT for s in symbols):
            continue
        if not imported and section.name == ".init_array" and (_REGISTERS_KERNELS & set(names) or _helps(library, names)):
            continue
        name = imported or next(iter(names), "code without a name")
        if any(n.startswith(_INITIALISERS) for n in names) and not imported:
            why = "initialises data when the library is loaded; forge_launch, or constexpr, is the place for that"
            yield Finding(0, "initialiser", name, why, rejects=False)
        else:
            yield Finding(0, "constructor", name, "runs outside forge_launch, when the library is loaded or unloaded")


def _helps(library: Library, names: list[str]) -> bool:
    files = [s.name for s in library.symbols if s.type == "STT_FILE"]
    return any(f.startswith(_HELPERS[n]) for n in names if n in _HELPERS for f in files)


def _resolvers(library: Library) -> Iterator[Finding]:
    for symbol in library.symbols:
        if symbol.type in IFUNC_TYPES and symbol.section:
            # The compiler's own, for target_clones, are named with a dot, which C++ cannot.
            own = any(s.name == f"{symbol.name.partition('.')[0]}.resolver" for s in library.functions_at(symbol.value))
            yield Finding(0, "resolver", symbol.name, "is chosen by code while loading", rejects=not own)
    kind = _IRELATIVE.get(library.machine)
    for relocation in library.relocations:
        if relocation.kind == kind:
            names = [s.name for s in library.functions_at(relocation.addend)]
            if not any(n.endswith(".resolver") for n in names):
                name = next(iter(names), "code without a name")
                yield Finding(0, "resolver", name, "chooses functions while loading")
