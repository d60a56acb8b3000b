"""Building readable C: indentation, blocks, the header comment with what the kernel computes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch_forge.records.program import CheckedIndex, Index, IndexValue, Load, Lowered, Op, Part, Reduce, Scan, Statement


class Writer:
    """Collects lines at the current indentation."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0

    def line(self, text: str = "") -> None:
        """One line; a preprocessor line starts at the margin."""
        self._lines.append("" if not text else text if text.startswith("#") else "  " * self._depth + text)

    def lines(self, *texts: str) -> None:
        for text in texts:
            self.line(text)

    @contextmanager
    def block(self, head: str, tail: str = "}") -> Iterator[None]:
        """``head {`` ... ``}``."""
        self.line(f"{head} {{" if head else "{")
        self._depth += 1
        yield
        self._depth -= 1
        self.line(tail)

    @contextmanager
    def body(self) -> Iterator[None]:
        """The lines of a block whose head, with its brace, is already written."""
        self._depth += 1
        yield
        self._depth -= 1
        self.line("}")

    def include(self, other: Writer) -> None:
        """The lines of another writer, at the current indentation."""
        for text in other._lines:
            self.line(text)

    def mentions(self, name: str) -> bool:
        """Whether the identifier occurs."""
        return any(re.search(rf"\b{name}\b", line) for line in self._lines)

    def indent(self, by: int) -> None:
        """Move the indentation, for a block whose ends are written apart."""
        self._depth += by

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def header(title: str, index_bits: int, lowered: Lowered, statics: Mapping[str, int]) -> list[str]:
    """The comment at the top of every source: what it computes, and what was compiled in."""
    compiled_in = ", ".join(f"{name} = {value}" for name, value in statics.items())
    lines = [
        f"// forge: index_bits={index_bits}",
        f"// {title}",
        f"// Compiled in: {compiled_in}." if compiled_in else "// Any sizes and strides.",
        "//",
    ]
    for part in lowered.program.parts:
        lines += [f"//   {line}" for line in describe(part)]
    return lines


def describe(part: Part) -> list[str]:
    """A part as pseudo-code, one line a statement."""
    loops = [f"d{k} < {size}" for k, size in enumerate(part.outer)] + ([f"row < {part.row}"] if part.row else [])
    return [f"for {', '.join(loops) or 'once'}:", *(f"  {describe_statement(s)}" for s in part.body)]


def describe_statement(s: Statement) -> str:
    """One statement in the notation of the header comment."""
    match s:
        case Load():
            return f"{s.name} = tensor{s.tensor}[{describe_index(s.index)}]" + (f" where {s.mask}, else 0" if s.mask else "")
        case Op():
            return f"{s.name} = {s.fn}({', '.join(str(a) for a in s.args)}) -> {s.dtype}"
        case IndexValue():
            return f"{s.name} = {describe_index(s.index)}"
        case CheckedIndex():
            return f"{s.name} = {s.arg}, checked to lie in {describe_index(s.size)}" + (
                ", from the end if negative" if s.wrap else ""
            )
        case Reduce():
            return f"{s.name} = {s.fn} over the row of {s.arg}"
        case Scan():
            return f"{s.name} = running {s.fn} along the row of {s.arg} -> {s.dtype}"
        case _:
            return f"tensor{s.tensor}[{describe_index(s.index)}] = {s.value}"


def describe_index(index: Index) -> str:
    """An index expression without needless parentheses."""
    if isinstance(index, int):
        return str(index)
    match index[0]:
        case "p" | "v":
            return str(index[1])
        case "d":
            return f"d{index[1]}"
        case "row":
            return "row"
        case "+":
            return " + ".join(describe_index(o) for o in index[1:])
        case _:
            operands = [
                f"({describe_index(o)})" if isinstance(o, tuple) and o[0] == "+" else describe_index(o) for o in index[1:]
            ]
            return f" {index[0]} ".join(operands)


@contextmanager
def entry(w: Writer) -> Iterator[None]:
    """The entry point's signature and braces."""
    w.line('extern "C" int forge_launch(const ForgeTensor* in, const ForgeTensor* out, const int64_t* dims, int64_t config,')
    with w.block("                            int64_t, void*, void* stream)"):
        yield
