"""A C++ or CUDA source as tokens, cut exactly where a compiler cuts it.

Whoever reads a kernel's source without compiling it needs to know what is code and what is comment or literal: the reader of
model replies to tell whole code from cut-off code, the static gate to not trip over comments and not be led astray by text
that only looks like one. So the odd corners are taken seriously: lines joined by a backslash, which raw strings undo, quotes
that do not close, ``#if 0``.
"""

from __future__ import annotations

import enum
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Kind(enum.Enum):
    """What a token is."""

    WORD = "word"
    NUMBER = "number"
    STRING = "string"
    CHAR = "char"
    HEADER = "header"
    """``<...>`` after ``#include``."""
    MARK = "mark"
    OPEN = "open"
    """A quote or comment that does not close, up to where the compiler gives up on it."""


class Token(NamedTuple):
    """One preprocessing token."""

    kind: Kind
    text: str
    line: int
    """Of its first character, from 1."""


@dataclass(frozen=True)
class Directive:
    """One preprocessor line."""

    name: str
    """``include``, ``define`` ...; empty for a lone ``#``, a number for a line marker."""
    tokens: tuple[Token, ...]
    """What follows the name."""
    line: int
    mark: str = "#"
    """Or the digraph ``%:``."""


@dataclass(frozen=True)
class SourceText:
    """A source taken apart. What stands between a literal ``#if 0`` and its end is in neither part."""

    code: tuple[Token, ...]
    """Tokens outside of directives."""
    directives: tuple[Directive, ...]
    whole: bool
    """Every comment, literal and bracket that opens is closed, in order."""


SPLICE = re.compile(r"\\[ \t\f\v]*\r?\n")
"""Joins two lines; compilers forgive blanks after the backslash."""
_TOKEN = re.compile(
    r"""
    (?P<space>   [ \t\f\v\r]+ )
  | (?P<newline> \n )
  | (?P<comment> //[^\n]* | /\*.*?\*/ )
  | (?P<raw>     (?:u8|[uUL])?R"(?P<delimiter>[^()\\\s"]{0,16})\( )
  | (?P<string>  (?:u8|[uUL])?"(?:\\[^\n]|[^"\\\n])*" )
  | (?P<char>    (?:u8|[uUL])?'(?:\\[^\n]|[^'\\\n])+' )
  | (?P<number>  \.?[0-9](?:[eEpP][+-]|'[0-9A-Za-z_]|[\w.])* )
  | (?P<word>    (?:[^\W\d]|\$|\\[uU][0-9A-Fa-f]{4})(?:\w|\$|\\[uU][0-9A-Fa-f]{4})* )
  | (?P<open>    /\*.* | (?:u8|[uUL])?["'][^\n]* )
  | (?P<mark>    %:%: | \#\# | %: | :: | -> | <<< | >>> | \.\.\. | . )
    """,
    re.VERBOSE | re.DOTALL,
)
_HEADER = re.compile(r"<[^>\n]*>")
_INCLUDES = [[mark, name] for mark in ("#", "%:") for name in ("include", "include_next", "import", "embed")]
_KINDS = {
    "header": Kind.HEADER, "raw": Kind.STRING, "string": Kind.STRING, "char": Kind.CHAR, "number": Kind.NUMBER,
    "word": Kind.WORD, "open": Kind.OPEN, "mark": Kind.MARK,
}  # fmt: skip
_OPENERS = {")": "(", "]": "[", "}": "{"}
_NEWLINE = Token(Kind.MARK, "\n", 0)


def read_source(source: str) -> SourceText:
    """Takes ``source`` apart."""
    code: list[Token] = []
    directives: list[Directive] = []
    conditions: list[bool] = []  # for each open #if: whether its current branch is literally dead
    for is_directive, tokens in _lines(_tokens(source.removeprefix("\ufeff"))):
        if is_directive:
            directive = _directive(tokens)
            alive = not any(conditions)
            _enter(directive, conditions)
            if alive:
                directives.append(directive)
        elif not any(conditions):
            code += tokens
    all_tokens = [*code, *(t for d in directives if d.name not in {"error", "warning"} for t in d.tokens)]
    whole = all(t.kind is not Kind.OPEN for t in all_tokens) and _balanced(code)
    return SourceText(tuple(code), tuple(directives), whole)


def defines_entry_point(text: SourceText) -> bool:
    """Whether the source holds a body for ``forge_launch``, not just its name."""
    for at, token in enumerate(text.code):
        if token.text == "forge_launch" and (end := closing(text.code, at + 1)) is not None:
            after = [t.text for t in text.code[end + 1 : end + 3]]
            if after[:1] == ["{"] or after == ["noexcept", "{"]:
                return True
    return False


def closing(tokens: Sequence[Token], opening: int) -> int | None:
    """Index of the bracket that closes the one at ``opening``; None if there is none, or no opening one there."""
    if not opening < len(tokens) or tokens[opening].text not in ("(", "[", "{"):
        return None
    depth = 0
    for at in range(opening, len(tokens)):
        if tokens[at].kind is Kind.MARK:
            depth += tokens[at].text in "([{"
            depth -= tokens[at].text in ")]}"
            if depth == 0:
                return at
    return None


class _Splices:
    """A source with its split lines joined, and the way back to places in the original."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.joined = SPLICE.sub("", source)
        self._ends = [m.end() for m in SPLICE.finditer(source)]
        removed = 0
        self._removed: list[int] = []
        self._at: list[int] = []
        for match in SPLICE.finditer(source):
            self._at.append(match.start() - removed)
            removed += match.end() - match.start()
            self._removed.append(removed)
        self._newlines = [m.start() for m in re.finditer("\n", source)]

    def original(self, joined: int) -> int:
        """Where a character of the joined text stands in the source."""
        count = bisect_right(self._at, joined)
        return joined + (self._removed[count - 1] if count else 0)

    def in_joined(self, original: int) -> int:
        """The way there."""
        count = bisect_right(self._ends, original)
        return original - (self._removed[count - 1] if count else 0)

    def line(self, joined: int) -> int:
        """Line number in the source, from 1."""
        return bisect_right(self._newlines, self.original(joined) - 1) + 1


def _tokens(source: str) -> Iterator[Token]:
    """All tokens and line ends; comments and blanks are gone."""
    splices = _Splices(source)
    text, at = splices.joined, 0
    begun: list[str] = []  # the first tokens of this line
    while at < len(text):
        header = _HEADER.match(text, at) if len(begun) == 2 and begun in _INCLUDES else None
        match = header or _TOKEN.match(text, at)
        assert match is not None  # its last branch takes any character
        group = "header" if header else match.lastgroup or ""
        start, at = at, match.end()
        if group in {"space", "comment"}:
            continue
        if group == "newline":
            begun = []
            yield _NEWLINE
            continue
        kind = _KINDS[group]
        if group == "raw":
            # Inside, the compiler undoes the joining of lines, so the end is looked for in the original.
            closer = f'){match["delimiter"]}"'
            end = source.find(closer, splices.original(match.end() - 1) + 1)
            at = splices.in_joined(end + len(closer)) if end >= 0 else len(text)
            kind = Kind.STRING if end >= 0 else Kind.OPEN
        if len(begun) < 3:
            begun.append(text[start:at])
        yield Token(kind, text[start:at], splices.line(start))


def _lines(tokens: Iterator[Token]) -> Iterator[tuple[bool, list[Token]]]:
    """(whether it is a directive, its tokens) for each line that has any."""
    line: list[Token] = []
    for token in tokens:
        if token is not _NEWLINE:
            line.append(token)
        elif line:
            yield line[0].text in {"#", "%:"}, line
            line = []
    if line:
        yield line[0].text in {"#", "%:"}, line


def _directive(tokens: list[Token]) -> Directive:
    name = tokens[1].text if len(tokens) > 1 else ""
    return Directive(name, tuple(tokens[2:]), tokens[0].line, tokens[0].text)


def _enter(directive: Directive, conditions: list[bool]) -> None:
    """What a directive does to the open conditions."""
    if directive.name in {"if", "ifdef", "ifndef"}:
        conditions.append(directive.name == "if" and [t.text for t in directive.tokens] == ["0"])
    elif directive.name in {"else", "elif", "elifdef", "elifndef"} and conditions:
        conditions[-1] = False
    elif directive.name == "endif" and conditions:
        conditions.pop()


def _balanced(code: list[Token]) -> bool:
    stack: list[str] = []
    for token in code:
        if token.kind is not Kind.MARK:
            continue
        if token.text in "([{":
            stack.append(token.text)
        elif token.text in _OPENERS and (not stack or stack.pop() != _OPENERS[token.text]):
            return False
    return not stack
