from __future__ import annotations

import io
import re

import pytest

from tests.support.sessions import model_check, region_result, session_report
from torch_forge.errors import RecordError, UsageError
from torch_forge.records.profile import LeftAlone
from torch_forge.report import files, markdown, text
from torch_forge.report.cells import microseconds
from torch_forge.report.summarize import summarize

HOSTILE = "a|b [red]x[/red] <script> `c` *d*\nnext line"
REPORT = session_report(
    region_result(),
    region_result(name="very_long_region_name_of_a_fused_thing_" * 2, verdict="kept", inductor_us=None, why=HOSTILE),
    check=model_check(),
    left=(LeftAlone("aten.addmm", 0.5, "matrix product"),),
    notes=("one note",),
)
DATA = summarize(REPORT)


@pytest.mark.parametrize(
    ("us", "shown"),
    [(None, "-"), (1234.5, "1234"), (212.04, "212"), (84.04, "84.0"), (3.14159, "3.14"), (0.004, "0.00")],
)
def test_microseconds(us, shown):
    assert microseconds(us) == shown


def test_plain_text():
    table = text.render(DATA).split("\n\n")[3].splitlines()
    heads = ["region", "share", "eager us", "compile us", "forge us", "bound us", "% of bound", "verdict"]
    assert re.split(" {2,}", table[0]) == heads
    assert table[2].split() == ["softmax", "40.0%", "212", "218", "84.0", "63.0", "75", "installed"]
    assert table[3] == "    2.5x eager, 2.6x torch.compile"


@pytest.mark.parametrize("width", [110, 80])
def test_plain_text_keeps_to_the_width_and_has_no_colours(width):
    shown = text.render(DATA, width=width)
    assert max(map(len, shown.splitlines())) <= width
    assert "\x1b" not in shown
    assert "very" in shown


@pytest.mark.parametrize("render", [text.render, markdown.render], ids=["text", "markdown"])
def test_everything_is_said(render):
    shown = render(DATA).replace("\\", "")
    said = (
        "Net on test CPU", "1 of 2 regions replaced", "1.60x (95 % interval", "aten.addmm", "matrix product", "one note",
        "profile 1.2 s, forge 30.0 s; together 31.2 s", "revert()", "kept eager", "eager-equivalent",
    )  # fmt: skip
    assert [part for part in said if part not in shown] == []


def test_rich_shows_the_same_and_reads_no_markup():
    from rich.console import Console

    stream = io.StringIO()
    Console(file=stream, width=200).print(text.render_rich(DATA))
    shown = stream.getvalue()
    assert "[red]x[/red] <script>" in shown
    for part in ("1 of 2 regions replaced", "softmax", "75", "1.60x (95 % interval", "aten.addmm", "revert()"):
        assert part in shown


def test_markdown_cells_cannot_be_broken():
    rows = [line for line in markdown.render(DATA).splitlines() if line.startswith("| ") and "kept eager" in line]
    assert len(rows) == 1
    assert rows[0].replace("\\|", "").count("|") == 11
    assert "<script>" not in rows[0]


def test_markdown_table_is_aligned_with_its_head():
    lines = markdown.render(DATA).splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("| region"))
    assert lines[head].count("|") == lines[head + 1].count("|") == lines[head + 2].count("|") == 11


def test_json_comes_back_equal(tmp_path):
    assert files.load(files.save(REPORT, tmp_path / "report.json")) == REPORT


@pytest.mark.parametrize(("name", "start"), [("r.md", "# torch"), ("r.TXT", "torch_forge: Net"), ("r.json", "{")])
def test_suffix_decides(tmp_path, name, start):
    path = files.save(REPORT, tmp_path / name)
    assert path.read_text().startswith(start)
    assert [p.name for p in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["r.html", "r", "r.pdf"])
def test_other_suffixes_are_refused_with_the_list(tmp_path, name):
    with pytest.raises(UsageError) as error:
        files.save(REPORT, tmp_path / name)
    assert ".json, .md, .txt" in error.value.advice


def test_missing_directory(tmp_path):
    with pytest.raises(UsageError, match="no directory"):
        files.save(REPORT, tmp_path / "no" / "r.md")


def test_not_a_report(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(RecordError):
        files.load(tmp_path / "x.json")
