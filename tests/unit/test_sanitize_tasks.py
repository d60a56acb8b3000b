"""What a worker does for ``sanitize``: commands side by side, what each left, nothing after a build that failed."""

from __future__ import annotations

from pathlib import Path

from torch_forge.validation.sanitize_tasks import TEXT_BYTES, check


def sh(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


def test_what_each_command_left(tmp_path: Path):
    tools = {"a": sh("echo out; echo err >&2; echo note > a.notes; echo report > a.report; exit 86"), "b": sh("kill -6 $$")}
    left = check({"builds": {"x": sh("echo built > x")}, "tools": tools, "limit_s": 60.0}, tmp_path)
    assert left["builds"]["x"]["exit_status"] == 0
    assert (tmp_path / "x").read_text() == "built\n"
    a, b = left["tools"]["a"], left["tools"]["b"]
    assert (a["exit_status"], a["text"], a["notes"], a["timed_out"]) == (86, "report\nerr\nout\n", "note\n", False)
    assert (b["exit_status"], b["text"], b["notes"]) == (-6, "", "")


def test_no_tool_runs_after_a_build_that_failed(tmp_path: Path):
    builds = {"x": sh("exit 1"), "y": sh("true")}
    left = check({"builds": builds, "tools": {"a": sh("touch a")}, "limit_s": 60.0}, tmp_path)
    assert [left["builds"][name]["exit_status"] for name in ("x", "y")] == [1, 0]
    assert (left["tools"], (tmp_path / "a").exists()) == ({}, False)


def test_the_limit_ends_a_tool_and_keeps_its_words(tmp_path: Path):
    left = check({"builds": {}, "tools": {"a": sh("echo begun > a.notes; exec sleep 600")}, "limit_s": 1.0}, tmp_path)
    assert (left["tools"]["a"]["timed_out"], left["tools"]["a"]["notes"]) == (True, "begun\n")


def test_commands_run_at_the_same_time(tmp_path: Path):
    """Each waits for the other."""
    wait = "mkfifo {0} 2>/dev/null; while [ ! -e {1} ]; do sleep 0.01; done"
    tools = {"a": sh(wait.format("one", "two")), "b": sh(wait.format("two", "one"))}
    left = check({"builds": {}, "tools": tools, "limit_s": 60.0}, tmp_path)
    assert [left["tools"][name]["exit_status"] for name in ("a", "b")] == [0, 0]


def test_a_flood_of_words_is_cut_and_links_are_not_followed(tmp_path: Path):
    (tmp_path / "secret").write_text("secret")
    flood = sh("head -c 3000000 /dev/zero | tr '\\0' x; ln -s secret a.notes; mkdir a.report")
    left = check({"builds": {}, "tools": {"a": flood}, "limit_s": 60.0}, tmp_path)
    assert (len(left["tools"]["a"]["text"]), left["tools"]["a"]["notes"]) == (TEXT_BYTES, "")
