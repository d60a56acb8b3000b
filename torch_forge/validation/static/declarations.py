"""Declarations that reach out of the kernel: attributes, renamed symbols, names defined elsewhere, integers as functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch_forge.records.source_text import Kind, SourceText, Token, closing
from torch_forge.validation.static.finding import Finding, names_in, shown

_ATTRIBUTES = {
    **dict.fromkeys(("constructor", "destructor", "init_priority"), "runs code outside forge_launch"),
    **dict.fromkeys(("ifunc", "alias", "weakref", "weak", "symver"), "makes a name mean something else"),
    "section": "puts code or data where they do not belong",
    "naked": "is code that the compiler does not see through",
}
_ATTRIBUTE_WORDS = frozenset({"__attribute__", "__attribute", "__declspec"})
_ASM = frozenset({"asm", "__asm", "__asm__"})
_CONTROL = frozenset({"if", "for", "while", "switch"})
_STATEMENT_WORDS = frozenset({"else", "do", "volatile", "return"})
_INTEGERS = names_in(
    "int long short unsigned char size_t ssize_t ptrdiff_t uintptr_t intptr_t int32_t int64_t uint32_t uint64_t "
    "uint8_t"
)  # fmt: skip


def declarations(read: SourceText) -> Iterator[Finding]:
    """Findings on declarations."""
    tokens = read.code
    pointers = _pointer_types(tokens)
    for at, token in enumerate(tokens):
        if token.text in _ATTRIBUTE_WORDS:
            end = closing(tokens, at + 1) or at
            yield from _attributes(tokens[at + 2 : end])
        elif token.text in {"gnu", "__gnu__", "clang"} and [t.text for t in tokens[at + 1 : at + 2]] == ["::"]:
            yield from _attributes(tokens[at + 2 : at + 3])
        elif token.text == "using" and [t.text for t in tokens[at + 1 : at + 3]] in (["gnu", ":"], ["__gnu__", ":"]):
            yield from _attributes(tokens[at + 3 : at + 12])
        elif token.text in _ASM and _renames(tokens, at):
            yield Finding(token.line, "asm label", tokens[at + 2].text, "gives a name the meaning of another symbol")
        elif token.text == "extern":
            yield from _extern(tokens, at)
        else:
            yield from _cast(tokens, at, pointers)


def _attributes(tokens: Sequence[Token]) -> Iterator[Finding]:
    for token in tokens:
        name = token.text.strip("_") if token.kind is Kind.WORD else ""
        if name in _ATTRIBUTES:
            yield Finding(token.line, "attribute", name, _ATTRIBUTES[name])


def _renames(tokens: Sequence[Token], at: int) -> bool:
    """``int f(int) asm("g")``, as against a statement of assembly."""
    inside = tokens[at + 1 : at + 4]
    if [t.text for t in inside][::2] != ["(", ")"] or inside[1].kind is not Kind.STRING or not at:
        return False
    before = tokens[at - 1]
    if before.text == ")":
        opening = _opening(tokens, at - 1)
        return opening == 0 or tokens[opening - 1].text not in _CONTROL
    return before.text == "]" or (before.kind is Kind.WORD and before.text not in _STATEMENT_WORDS)


def _opening(tokens: Sequence[Token], close: int) -> int:
    depth = 0
    for at in range(close, -1, -1):
        depth += (tokens[at].text == ")") - (tokens[at].text == "(")
        if depth == 0:
            return at
    return 0


def _extern(tokens: Sequence[Token], at: int) -> Iterator[Finding]:
    """Declarations without a definition in the file."""
    begin = at + 1
    if begin < len(tokens) and tokens[begin].kind is Kind.STRING:
        begin += 1
    if begin < len(tokens) and tokens[begin].text == "{":
        end = closing(tokens, begin) or len(tokens)
        begin += 1
        while begin < end:
            stop = _stop(tokens, begin)
            yield from _declared(tokens, begin, stop)
            begin = (closing(tokens, stop) or len(tokens)) + 1 if stop < end and tokens[stop].text == "{" else stop + 1
        return
    yield from _declared(tokens, begin, _stop(tokens, begin))


def _stop(tokens: Sequence[Token], at: int) -> int:
    """Where a declaration ends: its ``;`` or the ``{`` of its body."""
    while at < len(tokens) and tokens[at].text not in {";", "{"}:
        at = (closing(tokens, at) or at) + 1
    return at


def _declared(tokens: Sequence[Token], begin: int, stop: int) -> Iterator[Finding]:
    declaration = _without_attributes(tokens[begin:stop])
    words = {t.text for t in declaration}
    if stop >= len(tokens) or tokens[stop].text != ";" or words & {"__shared__", "template", "typedef", "using", "struct"}:
        return
    if "=" in words or not declaration:
        return
    ends = [k for k, t in enumerate(declaration) if t.text in {"(", "["}]
    name = next((t for t in reversed(declaration[: ends[0] if ends else None]) if t.kind is Kind.WORD), None)
    if name is None or name.text == "forge_launch" or _defined(tokens, name.text):
        return
    yield Finding(name.line, "extern", name.text, "is declared here and defined elsewhere")


def _without_attributes(tokens: Sequence[Token]) -> list[Token]:
    kept: list[Token] = []
    at = 0
    while at < len(tokens):
        if tokens[at].text in _ATTRIBUTE_WORDS:
            at = closing(tokens, at + 1) or at
        else:
            kept.append(tokens[at])
        at += 1
    return kept


def _defined(tokens: Sequence[Token], name: str) -> bool:
    for at, token in enumerate(tokens):
        if token.text == name and at and tokens[at - 1].text not in {"=", "(", ",", "return"}:
            end = closing(tokens, at + 1)
            after = tokens[end + 1].text if end is not None and end + 1 < len(tokens) else ""
            if after in {"{", "noexcept", "="}:
                return True
    return False


def _pointer_types(tokens: Sequence[Token]) -> frozenset[str]:
    """Names that the source gives to types of function pointers."""
    found = set()
    for at, token in enumerate(tokens):
        if token.text == "typedef":
            stop = _stop(tokens, at)
            for k in range(at, min(stop, len(tokens)) - 2):
                if tokens[k].text == "(" and tokens[k + 1].text == "*" and tokens[k + 2].kind is Kind.WORD:
                    found.add(tokens[k + 2].text)
        elif token.text == "using" and at + 2 < len(tokens) and tokens[at + 2].text == "=":
            stop = _stop(tokens, at)
            texts = [t.text for t in tokens[at:stop]]
            if any(texts[k : k + 3] == ["(", "*", ")"] for k in range(len(texts))):
                found.add(tokens[at + 1].text)
    return frozenset(found)


def _cast(tokens: Sequence[Token], at: int, pointers: frozenset[str]) -> Iterator[Finding]:
    """``(R (*)(...)) x``, ``(Name) x`` and ``reinterpret_cast`` of either."""
    texts = [t.text for t in tokens[at : at + 3]]
    operand: int | None = None
    if texts == ["(", "*", ")"]:
        end = closing(tokens, at + 3)
        after = [t.text for t in tokens[end + 1 : end + 3]] if end is not None else []
        if end is not None and (after[:1] == [")"] or after == [">", "("]):
            operand = end + 2
    elif len(texts) == 3 and texts[1] in pointers and (texts[0], texts[2]) in {("(", ")"), ("<", ">")}:
        operand = at + 3
    if operand is None or operand >= len(tokens):
        return
    first = tokens[operand]
    if first.kind not in {Kind.WORD, Kind.NUMBER} and first.text not in {"(", "&", "*"}:
        return
    end = closing(tokens, operand)
    inside = tokens[operand : end + 1] if end is not None else tokens[operand : operand + 4]
    integer = any(t.kind is Kind.NUMBER or t.text in _INTEGERS for t in inside if t.text != "nullptr")
    why = "turns an integer into a function" if integer else "turns data into a function, if it is not one already"
    yield Finding(first.line, "cast", shown(" ".join(t.text for t in inside[:6])), why, rejects=integer)
