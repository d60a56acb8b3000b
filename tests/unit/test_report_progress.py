from __future__ import annotations

import io
import logging
import re
import sys
from collections.abc import Iterator

import pytest

from torch_forge.errors import UsageError
from torch_forge.report.progress import (
    CallbackProgress,
    LogProgress,
    Progress,
    QuietProgress,
    RichProgress,
    make_progress,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def session(progress: Progress) -> None:
    progress.stage("profile")
    progress.stage("forge")
    progress.region("softmax", 1, 2, 212.0)
    progress.candidate("passed", 100.0)
    progress.candidate("not built", 100.0)
    progress.candidate("passed", 84.0)
    progress.region("norm [x]", 2, 2)
    progress.candidate("mismatch", None)
    progress.note("budget spent")
    progress.close()
    progress.close()
    progress.stage("after the end")


@pytest.fixture
def terminal(monkeypatch) -> Iterator[Terminal]:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


def test_lines_are_few_and_say_best_against_eager():
    stream = io.StringIO()
    session(LogProgress(stream, direct=True))
    assert [re.sub(r" +[\d.]+ s  ", " ", line) for line in stream.getvalue().splitlines()] == [
        "torch_forge profile",
        "torch_forge forge",
        "torch_forge [1/2] softmax: best 84.0 us, eager 212.0 us (2.5x); 2 passed, 1 not built",
        "torch_forge budget spent",
        "torch_forge [2/2] norm [x]: 1 mismatch",
    ]


def test_logging_that_the_application_set_up_is_used(caplog):
    stream = io.StringIO()
    with caplog.at_level(logging.INFO, logger="torch_forge"):
        session(LogProgress(stream))
    assert stream.getvalue() == ""
    assert len(caplog.messages) == 5
    assert {r.name for r in caplog.records} == {"torch_forge.report.progress"}


def test_events_are_dicts():
    events = []
    session(make_progress(events.append))
    names = ["stage", "stage", "region", "candidate", "candidate", "candidate", "region", "candidate", "note", "close"]
    assert [e["event"] for e in events] == names
    assert events[2].keys() == {"event", "elapsed_s", "name", "index", "total", "eager_us"}
    assert (events[5]["outcome"], events[5]["best_us"]) == ("passed", 84.0)
    times = [e["elapsed_s"] for e in events]
    assert times == sorted(times)


def test_terminal_gets_one_live_line_that_goes_away(terminal):
    progress = make_progress("auto", terminal)
    assert isinstance(progress, RichProgress)
    user_stdout, user_stderr = sys.stdout, sys.stderr
    progress.region("norm [x]", 2, 2, 10.0)
    progress.candidate("passed", 5.0)
    assert (sys.stdout, sys.stderr) == (user_stdout, user_stderr)
    progress.note("[bold]said[/bold]")
    progress.close()
    shown = terminal.getvalue()
    assert "torch_forge: [bold]said[/bold]" in shown
    assert shown.endswith("\x1b[2K")  # the line is erased
    progress.close()


@pytest.mark.parametrize("option", ["auto", "on", "off", True, False])
def test_nothing_ever_goes_to_stdout(option, capsys):
    session(make_progress(option))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("option", ["auto", "on"])
def test_terminal_output_never_goes_to_stdout(option, terminal, capsys):
    session(make_progress(option, terminal))
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("option", "kind"),
    [
        ("auto", LogProgress),
        ("on", LogProgress),
        (True, LogProgress),
        ("off", QuietProgress),
        (False, QuietProgress),
        (print, CallbackProgress),
    ],
    ids=["auto", "on", "true", "off", "false", "function"],
)
def test_options_without_a_terminal(option, kind):
    assert type(make_progress(option, io.StringIO())) is kind


def test_own_object_is_used_as_it_is():
    own = QuietProgress()
    assert make_progress(own) is own


def test_dumb_terminal_gets_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_progress("auto", Terminal()), LogProgress)


def test_unknown_option():
    with pytest.raises(UsageError, match="progress='loud'"):
        make_progress("loud")
