"""Inline assembly and literals: what makes the assembler read files, enter the system or leave the function."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from torch_forge.records.source_text import Kind, SourceText, Token, closing
from torch_forge.validation.static.finding import Finding, shown

_ASM = frozenset({"asm", "__asm", "__asm__"})
_QUALIFIERS = frozenset({"volatile", "__volatile__", "__volatile", "inline", "__inline__", "goto"})
_HOST_DIRECTIVES = frozenset({".p2align", ".align", ".balign"})
_PTX_DIRECTIVES = frozenset({".reg", ".pragma", ".shared", ".local", ".param", ".branchtargets"})
_SYSTEM = re.compile(r"syscall|sysenter|int3?|icebp|svc|hvc|smc|hlt|blr?|ljmp|iretq?|(?:rd|wr)[fg]sbase[lq]?|in|out")
_CALL = re.compile(r"l?call[ql]?|call\.uni")
_THREAD_BASE = re.compile(r"%[fg]s\b|tpidr_el0", re.IGNORECASE)
_LITERAL = re.compile(
    r"/(?:proc|etc|dev|sys|home|root|tmp|usr|var)/|\.incbin\b|\.include\b|\bsyscall\b|\bint\s+\$?0x80|\bsvc\s+#?0",
    re.IGNORECASE,
)
_ESCAPES = {"n": "\n", "t": " ", "r": "\n"}


def assembly(read: SourceText, backend: str) -> Iterator[Finding]:
    """Findings on ``asm`` and on string literals, in code and in macros. backend: ``cpu`` or ``cuda``."""
    for tokens in (read.code, *(d.tokens for d in read.directives if d.name == "define")):
        for at, token in enumerate(tokens):
            if token.kind is Kind.STRING and (bad := _LITERAL.search(token.text)):
                yield Finding(token.line, "literal", bad[0], "is in a literal; a kernel does not need it")
            elif token.text in _ASM:
                yield from _statement(tokens, at, backend)


def _statement(tokens: Sequence[Token], at: int, backend: str) -> Iterator[Finding]:
    begin = at + 1
    while begin < len(tokens) and tokens[begin].text in _QUALIFIERS:
        begin += 1
    end = closing(tokens, begin)
    if end is None:
        return
    template: list[Token] = []
    for token in tokens[begin + 1 : end]:
        if token.text in {":", "::"}:
            break
        template.append(token)
    text = "".join(literal_value(t.text) for t in template if t.kind is Kind.STRING)
    wrong = [(shown(i), why) for i in _instructions(text) if (why := _wrong(i, backend))]
    if _THREAD_BASE.search(text):
        wrong.append((shown(text), "reads where the thread's own data are"))
    for what, why in wrong:
        yield Finding(tokens[at].line, "assembly", what, why)
    if backend == "cpu" and text.strip() and not wrong:
        yield Finding(tokens[at].line, "assembly", shown(text), "is inline assembly; intrinsics say the same", rejects=False)


def _wrong(instruction: str, backend: str) -> str:
    first = instruction.split(None, 1)[0]
    if first.startswith("."):
        allowed = _PTX_DIRECTIVES if backend == "cuda" else _HOST_DIRECTIVES
        return "" if first in allowed else "directs the assembler, which a kernel does not need"
    if _CALL.fullmatch(first.lower()):
        return "calls from inside assembly"
    return "enters the system or leaves the kernel" if _SYSTEM.fullmatch(first.lower()) else ""


def _instructions(text: str) -> Iterator[str]:
    """Instructions and directives of a template, without labels and predicates."""
    for piece in re.split(r"[\n;{}]|//[^\n]*", text):
        piece = re.sub(r"^\s*(?:[\w.$%=]+:\s*)*(?:@!?%?\w+\s+)?", "", piece)
        piece = re.sub(r"^(?:(?:lock|rep|repe|repne|repz|repnz|data16|notrack)\s+)+", "", piece, flags=re.IGNORECASE)
        if piece and (piece[0].isalpha() or piece[0] in "._"):
            yield piece


def literal_value(text: str) -> str:
    """A string literal's value; escapes by number, which are an odd way to write assembly, become their characters."""
    raw = re.match(r'(?:u8|[uUL])?R"([^()\\\s"]*)\(', text)
    if raw:
        return text[raw.end() : -len(raw[1]) - 2]
    body = text[text.find('"') + 1 : -1]
    return re.sub(r"\\(x[0-9A-Fa-f]+|[0-7]{1,3}|u[0-9A-Fa-f]{4}|.)", _unescaped, body)


def _unescaped(match: re.Match[str]) -> str:
    escape = match[1]
    if escape[0] in "xu" and len(escape) > 1:
        return chr(int(escape[1:], 16) & 0x10FFFF)
    return chr(int(escape, 8)) if escape[0].isdigit() else _ESCAPES.get(escape, escape)
