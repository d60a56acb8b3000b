"""Directives: what is included, what is pasted, which pragmas are given."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from torch_forge.records.kernel_rules import HEADERS, IDLE_HEADERS
from torch_forge.records.source_text import Directive, Kind, SourceText, Token, read_source
from torch_forge.validation.static.finding import Finding, names_in, shown
from torch_forge.validation.static.words import FORBIDDEN_NAMES

_PLAIN = names_in(
    "define undef if ifdef ifndef else elif elifdef elifndef endif error warning pragma include"
)  # fmt: skip
_TORCH = re.compile(r"(?:torch|ATen|c10|caffe2|pybind11)/.*|Python\.h")
_PRAGMAS = names_in(
    "omp unroll nounroll once ivdep simd vector STDC clang diag_suppress diag_default nv_diag_suppress "
    "nv_diag_default nv_diagnostic nv_exec_check_disable hd_warning_disable no_inline inline push pop"
)  # fmt: skip
_GCC_PRAGMAS = names_in(
    "ivdep unroll diagnostic push_options pop_options optimize target novector"
)  # fmt: skip
_BAD_PRAGMAS = {
    "weak": "makes a name mean something else",
    "redefine_extname": "makes a name mean something else",
    "include_alias": "makes a header mean something else",
    "push_macro": "makes a name mean two things",
    "pop_macro": "makes a name mean two things",
    "GCC dependency": "looks for files on the building machine",
    "GCC system_header": "silences the compiler",
    "GCC poison": "changes how the rest is read",
    "GCC pch_preprocess": "reads a file while compiling",
    "comment": "speaks to the linker",
    "omp target": "moves the work to another device",
    "omp requires": "changes the program around the kernel",
}
_PASTES = frozenset({"##", "%:%:"})
_LATE_ATTRIBUTES = frozenset(
    {"constructor", "destructor", "ifunc", "weakref", "init_priority", "symver",
     "__constructor__", "__destructor__", "__ifunc__", "__weakref__", "__init_priority__", "__symver__"}
)  # fmt: skip


def directives(read: SourceText) -> Iterator[Finding]:
    """Findings on preprocessor lines and what stands for them in code (``_Pragma``, ``__has_include``)."""
    for directive in read.directives:
        name = directive.name
        if name and name not in _PLAIN:
            yield Finding(directive.line, "directive", f"#{name}", "is a preprocessor feature that a kernel does not need")
        elif name == "include":
            yield from _include(directive)
        elif name == "pragma":
            yield from _pragma([t.text for t in directive.tokens], directive.line)
        yield from _pasted(directive)
        for token in directive.tokens:
            if name == "define" and token.text in _LATE_ATTRIBUTES:
                yield Finding(directive.line, "attribute", token.text, "runs code outside forge_launch, behind a macro")
        yield from _operators(directive.tokens)
    yield from _operators(read.code)
    for before, token in zip(read.code, read.code[1:], strict=False):
        if before.text == "import" and (token.kind is Kind.STRING or token.text == "<"):
            yield Finding(before.line, "include", "import", "reads a module while compiling")


def _pasted(directive: Directive) -> Iterator[Finding]:
    """Names that a macro puts together: bad if one of them can be a name that a kernel may not use."""
    texts = [t.text for t in directive.tokens]
    end = texts.index(")") if texts[1:2] == ["("] and ")" in texts else 0
    parameters = {*texts[2:end], "__VA_ARGS__"} if set(texts[2:end]).isdisjoint(_PASTES) else {"__VA_ARGS__"}
    at = 0
    while at < len(texts):
        if texts[at] not in _PASTES or at == 0:
            at += 1
            continue
        operands = [texts[at - 1]]
        while at + 1 < len(texts) and texts[at] in _PASTES:
            operands.append(texts[at + 1])
            at += 2
        if all(re.fullmatch(r"\w+", o) for o in operands):
            pattern = re.compile("".join(r"\w*" if o in parameters else re.escape(o) for o in operands))
            reached = next((n for n in FORBIDDEN_NAMES if pattern.fullmatch(n)), None)
            what = shown(" ## ".join(operands))
            why = f"pastes tokens into a name, which could be {reached}; write it out" if reached else "puts a name together"
            yield Finding(directive.line, "pasting", what, why, rejects=reached is not None)


def header_of(tokens: Sequence[Token]) -> str:
    """The header that an ``#include`` names directly, or empty."""
    if len(tokens) == 1 and tokens[0].kind in {Kind.HEADER, Kind.STRING} and tokens[0].text[0] in '<"':
        return tokens[0].text[1:-1].strip()
    return ""


def _include(directive: Directive) -> Iterator[Finding]:
    header, what = header_of(directive.tokens), "#include " + "".join(t.text for t in directive.tokens)
    if header in HEADERS:
        return
    if header in IDLE_HEADERS:
        yield Finding(directive.line, "include", what, "declares what a kernel has no use for", rejects=False)
    elif _TORCH.fullmatch(header):
        yield Finding(directive.line, "include", shown(what), "is torch; write the computation itself")
    else:
        why = "is not allowed; forge.h, C++ standard and CUDA runtime headers are"
        yield Finding(directive.line, "include", shown(what), why)


def _pragma(words: list[str], line: int) -> Iterator[Finding]:
    first, pair = " ".join(words[:1]), " ".join(words[:2])
    why = _BAD_PRAGMAS.get(first) or _BAD_PRAGMAS.get(pair)
    if why:
        yield Finding(line, "pragma", f"#pragma {pair}", why)
    elif (first == "GCC" and not set(words[1:2]) & _GCC_PRAGMAS) or first not in {"GCC", *_PRAGMAS}:
        yield Finding(line, "pragma", shown("#pragma " + " ".join(words)), "is not one that a kernel needs", rejects=False)


def _operators(tokens: Sequence[Token]) -> Iterator[Finding]:
    for at, token in enumerate(tokens):
        if token.text == "_Pragma" and at + 2 < len(tokens) and tokens[at + 2].kind is Kind.STRING:
            inner = tokens[at + 2].text
            inner = inner[inner.find('"') + 1 : -1].replace('\\"', '"')
            yield from _pragma([t.text for t in read_source(inner).code], token.line)
        elif token.text in {"__has_include", "__has_include_next", "__has_embed"}:
            named = "".join(t.text for t in tokens[at + 2 : at + 12])
            match = re.match(r'[<"]([^<>"]*)[>"]', named)
            if token.text != "__has_include" or not match or match[1] not in HEADERS | IDLE_HEADERS:
                yield Finding(token.line, "include", token.text, "looks for files on the building machine")
