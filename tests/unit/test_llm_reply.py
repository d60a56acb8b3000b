"""Replies as models really send them: taken whole, or refused with a reason."""

from __future__ import annotations

import pytest

from tests.support.llm import SIGNATURE, fenced, source
from torch_forge.generation.llm.client import RefusalKind
from torch_forge.generation.llm.reply import NoSource, Source, extract_source

CODE = source()
TRICKY = source("const char* s = \"```\"; const char b = '}'; /* ``` } */ return s && b ? 0 : 1'000;")
RAW = source('const char* s = R"x({"unbalanced ) ")x"; return s ? 0 : 1;')


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (fenced(CODE), CODE),
        (fenced(CODE, ""), CODE),
        (fenced(CODE, "cuda"), CODE),
        (fenced(CODE).replace("\n", "\r\n"), CODE),
        (f"~~~cpp\n{CODE}~~~", CODE),
        (f"````cpp\n{CODE}````", CODE),
        (f"```cpp title=a.cu\n{CODE}```", CODE),
        (CODE, CODE),
        (fenced(TRICKY), TRICKY),
        (fenced(RAW), RAW),
        (f"Run it so:\n```bash\nmake\n```\n{fenced(CODE)}", CODE),
        (f"{fenced(CODE)}\n{fenced(CODE)}", CODE),
        (f"The signature is\n```c\n{SIGNATURE};\n```\n{fenced(CODE)}", CODE),
    ],
    ids=[
        "fenced", "no tag", "cuda tag", "windows lines", "tildes", "four backticks", "title", "bare source",
        "backticks in a string", "raw string", "another block", "the same block twice", "declared and defined",
    ],
)  # fmt: skip
def test_whole_source_is_taken(text: str, code: str):
    found = extract_source(text)
    assert isinstance(found, Source), found
    assert found.code == code


@pytest.mark.parametrize(
    ("text", "finish", "kind"),
    [
        (None, "stop", RefusalKind.EMPTY),
        ("  \n", "stop", RefusalKind.EMPTY),
        (None, "length", RefusalKind.CUT_OFF),
        ("I cannot do that.", "stop", RefusalKind.NO_SOURCE),
        ("First I think about", "length", RefusalKind.CUT_OFF),
        (f"```cpp\n{CODE}", "stop", RefusalKind.CUT_OFF),
        (f"```cpp\n{CODE[: len(CODE) // 2]}", "length", RefusalKind.CUT_OFF),
        ("```cpp\n#include <math.h>\n", "length", RefusalKind.CUT_OFF),
        (f"```cpp\n{CODE.rstrip().removesuffix('}')}\n```", "stop", RefusalKind.CUT_OFF),
        (f"```cpp\n{CODE}/* and then\n```", "stop", RefusalKind.CUT_OFF),
        (f"```cpp\n{source('return 0; } }')}```", "stop", RefusalKind.CUT_OFF),
        (f"{fenced(CODE)}\n{fenced(source('return 1;'))}", "stop", RefusalKind.NO_SOURCE),
        (f"```cpp\n{SIGNATURE};\n```", "stop", RefusalKind.NO_SOURCE),
        (f"```cpp\n// {' '.join(CODE.split())}\n```", "stop", RefusalKind.NO_SOURCE),
        ("```python\nprint('forge_launch')\n```", "stop", RefusalKind.NO_SOURCE),
        (f"```cpp\n{CODE}// {'x' * 300_000}\n```", "stop", RefusalKind.NO_SOURCE),
        (f"The file:\n\n{CODE}\nis done.", "stop", RefusalKind.NO_SOURCE),
        (CODE, "length", RefusalKind.CUT_OFF),
    ],
    ids=[
        "no text", "blank", "all tokens spent on thought", "a declined task", "cut in prose", "opening fence only",
        "cut in code", "cut before the entry point", "last brace missing", "comment not closed", "braces too many",
        "two kernels", "declared only", "commented out", "python", "too long", "prose around bare code", "bare, may be cut",
    ],
)  # fmt: skip
def test_the_rest_is_refused_with_a_reason(text: str | None, finish: str, kind: RefusalKind):
    found = extract_source(text, finish)
    assert isinstance(found, NoSource), found
    assert found.kind is kind
    assert found.reason.endswith(".")


def test_no_prefix_of_a_reply_is_taken_for_the_whole():
    text = fenced(source("if (config) { return FORGE_BAD_CONFIG; }\n  return FORGE_OK;"))
    whole = extract_source(text)
    taken = {extract_source(text[:n], "length") for n in range(len(text))}
    assert {found for found in taken if isinstance(found, Source)} <= {whole}
