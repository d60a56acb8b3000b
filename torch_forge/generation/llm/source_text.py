"""Just enough of a C++ lexer: which characters are code, which are comment or literal.

The reply reader needs it to tell whole code from cut-off code, the tripwires to not trip over comments.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_PIECES = re.compile(
    r"""
    (?P<comment> //[^\n]* | /\*.*?\*/ )
  | (?P<raw>     \b(?:u8|[uUL])?R"(?P<delim>[^()\\\s]{0,16})\(.*?\)(?P=delim)" )
  | (?P<string>  "(?:\\.|[^"\\\n])*" )
  | (?P<char>    (?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+' )
  | (?P<open>    /\* | (?:\b(?:u8|[uUL])?R)?" )
    """,
    re.VERBOSE | re.DOTALL,
)
_OPENERS = {")": "(", "]": "[", "}": "{"}


@dataclass(frozen=True)
class SourceText:
    """A source with its comments and literals taken apart."""

    code: str
    """Comments and literals replaced by blanks; same length and lines as the (spliced) source."""
    uncommented: str
    """Each comment replaced by one space, as a compiler does; literals kept."""
    literals: tuple[str, ...]
    """String literals as written, quotes included."""
    whole: bool
    """Every comment, literal and bracket that opens is closed, in order."""


def read_source(source: str) -> SourceText:
    """Takes ``source`` apart, lines that end in a backslash joined first, as a compiler does."""
    text = re.sub(r"\\\r?\n", "", source)
    literals: list[str] = []
    open_ended = False

    def blank(match: re.Match[str]) -> str:
        nonlocal open_ended
        if match["open"] is not None:
            open_ended = True
        if match["string"] is not None or match["raw"] is not None:
            literals.append(match[0])
        return "".join("\n" if c == "\n" else " " for c in match[0])

    code = _PIECES.sub(blank, text)
    uncommented = _PIECES.sub(lambda m: " " if m["comment"] is not None else m[0], text)
    return SourceText(code, uncommented, tuple(literals), not open_ended and _balanced(code))


def _balanced(code: str) -> bool:
    stack: list[str] = []
    for c in code:
        if c in "([{":
            stack.append(c)
        elif c in _OPENERS and (not stack or stack.pop() != _OPENERS[c]):
            return False
    return not stack


def defines_entry_point(code: str) -> bool:
    """Whether blanked code holds a body for ``forge_launch``, not just its name."""
    return re.search(r"\bforge_launch\s*\([^(){};]*\)\s*(?:noexcept\s*)?\{", code) is not None
