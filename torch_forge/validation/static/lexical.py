"""Text that reads as one thing and compiles as another."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch_forge.records.source_text import SPLICE, Kind, SourceText, Token
from torch_forge.validation.static.finding import Finding, shown

_SPLIT_WORD = re.compile(rf"\w{SPLICE.pattern}\w")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]|\r(?!\n)")
INVISIBLE = re.compile("[\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufff9-\ufffb]|(?<!^)\ufeff")
"""Characters that reorder or hide others."""
_PROSE = frozenset({"error", "warning"})


def oddities(source: str, read: SourceText) -> Iterator[Finding]:
    """Findings on how the text is written, whatever it says."""
    for pattern, what, why in (
        (_SPLIT_WORD, "backslash", "splits a word over two lines, which hides it; write it out"),
        (_CONTROL, "control character", "is not read alike by all compilers"),
        (INVISIBLE, "invisible character", "makes the text read differently from what is compiled"),
        (re.compile(r"\?\?/"), "??/", "is a backslash to some compilers"),
    ):
        if match := pattern.search(source):
            yield Finding(source.count("\n", 0, match.start()) + 1, "disguise", what, why)
    for token in read.code:
        yield from _odd_token(token)
    for before, token in zip(read.code, read.code[1:], strict=False):
        if before.text == token.text == "?":
            yield Finding(token.line, "disguise", "??", "is the start of a trigraph")
    for directive in read.directives:
        if directive.mark != "#":
            yield Finding(directive.line, "disguise", directive.mark, "is another way to write #, which hides a directive")
        for token in directive.tokens:
            if directive.name not in _PROSE:
                yield from _odd_token(token)


def _odd_token(token: Token) -> Iterator[Finding]:
    if token.kind is Kind.OPEN:
        yield Finding(token.line, "disguise", shown(token.text), "opens and does not close")
    elif token.kind is Kind.WORD and "\\" in token.text:
        yield Finding(token.line, "disguise", token.text, "writes a character by its number; write it out")
    elif token.kind is Kind.WORD and not token.text.isascii():
        yield Finding(token.line, "disguise", token.text, "has letters that look like others", rejects=False)
    elif token.kind is Kind.MARK and (token.text == "\\" or not token.text.isascii()):
        yield Finding(token.line, "disguise", token.text, "is not C++")
    elif token.text in {"%:", "%:%:"}:
        yield Finding(token.line, "disguise", token.text, "is another way to write #")
