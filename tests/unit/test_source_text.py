"""Sources as tokens: cut where a compiler cuts them."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from torch_forge.records.source_text import Kind, defines_entry_point, read_source


def words(source: str) -> list[str]:
    return [t.text for t in read_source(source).code]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a/* b */c // d\ne", ["a", "c", "e"]),
        ("sys\\\ntem", ["system"]),
        ("sys\\  \r\ntem", ["system"]),
        ("// a \\\nb\nc", ["c"]),
        ("1'000'000 + 0x1p-3f", ["1'000'000", "+", "0x1p-3f"]),
        ("u8\"a\\\"b\" L'\\''", ['u8"a\\"b"', "L'\\''"]),
        ('R"x(" // )y" )x" z', ['R"x(" // )y" )x"', "z"]),
        ('xR"(a"', ["xR", '"(a"']),
        ('"/*" a "*/"', ['"/*"', "a", '"*/"']),
        ("#if 0\na '\n#if 1\nb\n#endif\n#else\nc\n#endif\nd", ["c", "d"]),
        ("#ifdef X\na\n#else\nb\n#endif", ["a", "b"]),
        ("a ->* b::c <<<1>>> d", ["a", "->", "*", "b", "::", "c", "<<<", "1", ">>>", "d"]),
    ],
)
def test_tokens(source: str, expected: list[str]):
    assert words(source) == expected


def test_a_raw_string_undoes_the_joining_of_lines():
    """Its end is the first in the text as written; whoever joins lines first finds another and takes code for literal."""
    source = 'auto s = R"x(a )\\\nx" b )x"; code();'
    assert words(source)[-4:] == ["code", "(", ")", ";"]
    assert words(source)[3] == 'R"x(a )x" b )x"'


def test_an_unclosed_quote_ends_with_its_line():
    """So nothing in it opens a comment that would hide what follows."""
    read = read_source('#define X " /*\ncode();\n#define Y */\n')
    assert [t.text for t in read.code] == ["code", "(", ")", ";"]
    assert not read.whole


def test_directives_are_apart_from_code():
    read = read_source('# /* */ include <a\'b//c>\n#define F(x) \\\n  x\n%:pragma omp simd\nint x; // #include "y"\n')
    assert [(d.name, d.line, d.mark) for d in read.directives] == [
        ("include", 1, "#"),
        ("define", 2, "#"),
        ("pragma", 4, "%:"),
    ]
    assert [(t.kind, t.text) for t in read.directives[0].tokens] == [(Kind.HEADER, "<a'b//c>")]
    assert [t.line for t in read.directives[1].tokens] == [2, 2, 2, 2, 3]
    assert [t.line for t in read.code] == [5, 5, 5]


@pytest.mark.parametrize(
    ("source", "whole"),
    [("f(){[(1)]}", True), ("f(){", False), ("f(]", False), ("/* ", False), ('"a', False), ('R"x(a)"', False), ("'", False)],
)
def test_whole(source: str, whole: bool):
    assert read_source(source).whole == whole


@pytest.mark.parametrize(
    ("source", "defines"),
    [
        ("int forge_launch(int a) { }", True),
        ("int forge_launch(int (*a)(int)) noexcept {", True),
        ("int forge_launch(int a);", False),
        ("// int forge_launch() {}\n", False),
        ('const char* s = "forge_launch() {";', False),
        ("#if 0\nint forge_launch() {}\n#endif\n", False),
    ],
)
def test_the_entry_point_is_defined_not_named(source: str, defines: bool):
    assert defines_entry_point(read_source(source)) == defines


CORNERS = r"""
int a = 1'000; /* ' " */ const char* b = "\"/*"; // \
int hidden;
const char* c = R"q(")
//)q"; char d = '\''; int e\
f = 0x1e+1;
#if 0
don't " /*
#else
int g; // */
#endif
const char* h = R"x(a )\
x" b )x"; const char* i = u8R"(()" "x";
"""


@pytest.mark.compiler
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_compiler_cuts_alike():
    done = subprocess.run(
        ["g++", "-std=c++17", "-E", "-P", "-x", "c++", "-"], input=CORNERS, capture_output=True, text=True, check=True
    )
    # Adjacent tokens may be printed with other blanks, and raw strings keep their line breaks.
    compiled = [t.text for t in read_source(done.stdout).code if t.kind is not Kind.STRING]
    ours = read_source(CORNERS).code
    assert [t.text for t in ours if t.kind is not Kind.STRING] == compiled
    assert "hidden" not in compiled
    assert {"ef", "g", "h", "i"} <= set(compiled)
