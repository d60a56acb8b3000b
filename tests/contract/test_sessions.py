"""The contract of sessions: whatever a task does to the dialogue, an ask ends in time, with a reply or with an outcome."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.test_workers import ROOT, SUPPORT, descriptors, gone, parent_of
from torch_forge.machine.workers import Outcome, Session, SessionEnded, TaskDied, TaskDone, TaskExpired, WorkerPool


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerPool]:
    with WorkerPool(python_path=[SUPPORT, ROOT], scratch_root=tmp_path_factory.mktemp("scratch")) as shared:
        yield shared


def session(pool: WorkerPool, function: str, payload: Any = None, **options: Any) -> Session:
    return pool.session(f"session_tasks:{function}", payload, **{"timeout_s": 60.0, **options})


def ended(talk: Session, message: Any = None, timeout_s: float = 30.0) -> Outcome:
    """How it ended, asked for by an ask that cannot be answered."""
    with pytest.raises(SessionEnded) as caught:
        talk.ask(message, timeout_s=timeout_s)
    return caught.value.outcome


MESSAGES = [None, 0, "\u00e9" * 10, {"a": [1, 2.5, True]}, ["x" * 1000] * 3000]


def test_every_message_gets_its_reply(pool: WorkerPool):
    with session(pool, "echo", "given") as talk:
        for message in MESSAGES:
            reply = talk.ask(message, timeout_s=30)
            assert reply.value == message
            assert reply.seconds > 0
        outcome = talk.close()
    assert isinstance(outcome, TaskDone)
    assert outcome.value == ["given", len(MESSAGES)]
    assert outcome.scratch.is_dir()
    assert talk.close() is outcome


def test_a_reply_is_timed_from_question_to_answer(pool: WorkerPool):
    with session(pool, "echo") as talk:
        begin = time.monotonic()
        inside = [talk.ask(n, timeout_s=30).seconds for n in range(20)]
        assert 0 < sum(inside) <= time.monotonic() - begin


def test_the_pid_is_the_child_s(pool: WorkerPool):
    with session(pool, "obey") as talk:
        pid, parent = talk.ask("pid", timeout_s=30).value
        assert talk.pid == pid
        assert parent == parent_of(pool)
        assert Path(f"/proc/{talk.pid}/status").exists()
    assert gone(pid)


def test_what_it_prints_is_in_the_log(pool: WorkerPool):
    with session(pool, "obey") as talk:
        talk.ask("say", timeout_s=30)
        assert talk.close().log == "said on stdout\n"


ENDINGS: dict[str, tuple[int, int, str]] = {
    "raise": (0, 1, "ValueError: no such layout"),
    "crash": (signal.SIGSEGV, -signal.SIGSEGV, ""),
    "exit": (0, 0, ""),
    "ask again": (0, 1, "RuntimeError: a message of the session was not replied to"),
    "not plain": (0, 1, "TypeError: Object of type set is not JSON serializable"),
}


@pytest.mark.parametrize("message", ENDINGS)
def test_a_task_that_ends_is_an_outcome(pool: WorkerPool, message: str):
    talk = session(pool, "obey")
    died = ended(talk, message)
    assert isinstance(died, TaskDied)
    assert (died.signal, died.exit_status, died.exception) == ENDINGS[message]
    assert ended(talk, "pid") is died  # and stays so
    assert talk.close() is died


def test_a_task_that_returns_early(pool: WorkerPool):
    outcome = ended(session(pool, "obey"), "return")
    assert isinstance(outcome, TaskDone)
    assert outcome.value == "enough"


def test_a_second_reply_is_refused_by_the_dialogue(pool: WorkerPool):
    talk = session(pool, "obey")
    assert talk.ask("reply twice", timeout_s=30).value == 1
    assert gone(talk.pid)
    died = ended(talk, "pid")
    assert isinstance(died, TaskDied)
    assert died.exception == "RuntimeError: there is no message to reply to"


def test_a_task_that_hangs_is_killed_with_what_it_started(pool: WorkerPool, tmp_path: Path):
    talk = session(pool, "obey", scratch=tmp_path)
    assert talk.ask("pid", timeout_s=30).value[0] == talk.pid
    assert ended(talk, "hang", timeout_s=2.0) == TaskExpired(2.0, "")
    assert all(gone(int(pid)) for pid in (tmp_path / "pids").read_text().split())
    assert ended(talk, "pid") == TaskExpired(2.0, "")


def test_the_session_has_a_limit_of_its_own(pool: WorkerPool):
    talk = session(pool, "obey", timeout_s=2.0)
    assert ended(talk, "hang", timeout_s=600) == TaskExpired(2.0, "")


def test_a_task_that_does_not_listen(pool: WorkerPool):
    assert ended(session(pool, "deaf"), ["x" * 1000] * 3000, timeout_s=1.0) == TaskExpired(1.0, "")


def test_a_flood_is_cut_off(pool: WorkerPool):
    died = ended(session(pool, "flood"))
    assert isinstance(died, TaskDied)
    assert died.exception == "SessionError: it wrote what nobody had asked for"


@pytest.mark.parametrize("what", ["a reply", "a nested frame", "a list", "bytes", "half a frame", "one byte"])
@pytest.mark.parametrize("when", ["before", "instead", "after"])
def test_what_nobody_asked_for_is_no_reply(pool: WorkerPool, what: str, when: str):
    talk = session(pool, "write", {"what": what, "when": when})
    begin = time.monotonic()
    if when == "after":
        assert talk.ask("first", timeout_s=30).value == "first"
    died = ended(talk, "second", timeout_s=3.0)
    if isinstance(died, TaskExpired):
        assert what in {"half a frame", "one byte"}  # which looks like a slow reply if it comes after the question
    else:
        assert isinstance(died, TaskDied)
        assert died.exception == "SessionError: it wrote what nobody had asked for"
    assert time.monotonic() - begin < 40
    assert gone(talk.pid)


def test_closing_while_it_runs(pool: WorkerPool):
    talk = session(pool, "deaf")
    assert talk.close(timeout_s=1.0) == TaskExpired(1.0, "")
    assert gone(talk.pid)


def test_killing_while_it_runs(pool: WorkerPool):
    talk = session(pool, "deaf")
    talk.kill()
    outcome = talk.close()
    assert isinstance(outcome, TaskDied)
    assert outcome.signal == signal.SIGKILL


def test_an_exception_in_the_caller_kills_it(pool: WorkerPool):
    with pytest.raises(KeyError), session(pool, "deaf") as talk:
        raise KeyError
    assert gone(talk.pid)


def test_a_parent_that_is_killed(pool: WorkerPool):
    talk = session(pool, "obey")
    _, parent = talk.ask("pid", timeout_s=30).value
    os.kill(parent, signal.SIGKILL)
    died = ended(talk, "hang")
    assert isinstance(died, TaskDied)
    assert died.exception == "WorkerError: the worker parent was killed"
    assert gone(talk.pid)
    with session(pool, "echo") as again:
        assert again.ask(1, timeout_s=60).value == 1


def test_sessions_leave_nothing(pool: WorkerPool):
    parent = parent_of(pool)
    before = (descriptors(os.getpid()), descriptors(parent))
    for message in ["pid", "crash", "raise", "return"] * 5:
        talk = session(pool, "obey")
        if message == "pid":
            talk.ask(message, timeout_s=30)
            talk.close()
        else:
            ended(talk, message)
    assert descriptors(os.getpid()) <= before[0]
    for _ in range(100):
        if descriptors(parent) <= before[1]:
            break
        time.sleep(0.05)
    assert descriptors(parent) <= before[1]
