"""Reply text to source, or the reason why there is none. Pure.

One idea: a source is taken whole or not at all. An answer that stops before its closing fence, whose brackets do
not close, or which offers two different kernels is refused with words that the model can act on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch_forge.generation.llm.client import RefusalKind
from torch_forge.records.source_text import defines_entry_point, read_source

_FENCE = re.compile(r"^ {0,3}(?P<mark>`{3,}|~{3,})[ \t]*(?P<info>[^`\n]*)$")
_CODE_START = re.compile(r"\A\s*(?:#include\b|//|/\*|extern\b|#pragma\b)")

MAX_SOURCE_BYTES = 256 * 1024
"""Longer sources are refused: no kernel needs it, and a compiler can be made to choke."""


@dataclass(frozen=True)
class Source:
    """A whole source file."""

    code: str
    """Ends with a newline."""
    language: str
    """Tag of the fence (``cuda``, ``cpp`` ...), lower case; empty if it had none."""


@dataclass(frozen=True)
class NoSource:
    """The reply holds no source that may be compiled."""

    kind: RefusalKind
    reason: str
    """One line, addressed to the model."""


@dataclass(frozen=True)
class _Block:
    code: str
    language: str
    closed: bool


def extract_source(text: str | None, finish_reason: str = "stop") -> Source | NoSource:
    """The one kernel source in a reply."""
    if text is None or not text.strip():
        kind = RefusalKind.CUT_OFF if finish_reason == "length" else RefusalKind.EMPTY
        return NoSource(kind, "The reply had no text. Answer with one fenced code block.")
    blocks = _blocks(text)
    if not blocks and finish_reason != "length" and _CODE_START.match(text):
        blocks = [_Block(text, "", True)]
    holding = [b for b in blocks if "forge_launch" in b.code]
    if any(not b.closed for b in holding) or (blocks and not holding and not blocks[-1].closed):
        return NoSource(RefusalKind.CUT_OFF, "The code block was cut off before its closing fence. Send the whole file.")
    sources = {_normal(b.code): b for b in holding}
    if not sources:
        kind = RefusalKind.CUT_OFF if finish_reason == "length" else RefusalKind.NO_SOURCE
        return NoSource(kind, "No fenced code block defines forge_launch. Answer with exactly one, holding the whole file.")
    defining = {code: b for code, b in sources.items() if defines_entry_point(read_source(code))}
    if len(defining) > 1:
        return NoSource(RefusalKind.NO_SOURCE, f"{len(defining)} different blocks define forge_launch. Send exactly one.")
    code, block = next(iter((defining or sources).items()))
    return _checked(code, block.language)


def _checked(code: str, language: str) -> Source | NoSource:
    if len(code.encode("utf-8", "replace")) > MAX_SOURCE_BYTES:
        return NoSource(RefusalKind.NO_SOURCE, f"The source is longer than {MAX_SOURCE_BYTES} bytes.")
    if "\0" in code:
        return NoSource(RefusalKind.NO_SOURCE, "The source holds a NUL character.")
    read = read_source(code)
    if not read.whole:
        return NoSource(RefusalKind.CUT_OFF, "A bracket, comment or literal in the source does not close. Send it whole.")
    if not defines_entry_point(read):
        return NoSource(RefusalKind.NO_SOURCE, "forge_launch is named but not defined. Define it as forge.h declares it.")
    return Source(code, language)


def _normal(code: str) -> str:
    return "\n".join(line.rstrip() for line in code.strip("\n").splitlines()) + "\n"


def _blocks(text: str) -> list[_Block]:
    """Fenced blocks; a fence counts only at the start of a line, so backticks inside code are code."""
    blocks: list[_Block] = []
    lines: list[str] = []
    mark = language = ""
    for line in text.splitlines():
        fence = _FENCE.match(line)
        if not mark:
            if fence:
                mark, language, lines = fence["mark"], fence["info"].strip().lower(), []
        elif fence and fence["mark"].startswith(mark) and not fence["info"].strip():
            blocks.append(_Block("\n".join(lines), language, True))
            mark = ""
        else:
            lines.append(line)
    if mark:
        blocks.append(_Block("\n".join(lines), language, False))
    return blocks
