"""The LLM loop through litellm against an OpenAI-compatible server on loopback: the real stack, scripted answers."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from tests.support.llm import cpu, cuda, evaluate, fenced, make_plan, make_problem, source
from tests.support.openai_server import Answer, OpenAIServer, failure, openai_server, reply
from torch_forge.generation.llm.author import LLMAuthor
from torch_forge.generation.llm.budget import LLMBudget
from torch_forge.generation.llm.client import Message, Refusal, RefusalKind, Reply
from torch_forge.generation.llm.litellm_client import LiteLLMClient
from torch_forge.generation.llm.transcript import RecordingClient, ReplayClient
from torch_forge.records.kernels import Candidate
from torch_forge.records.outcomes import Passed, Trial

pytestmark = pytest.mark.skipif(importlib.util.find_spec("litellm") is None, reason="needs litellm (extra `llm`)")

KEY = "sk-loopback-0123456789abcdef"
ASK = [Message("user", "hello")]


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    return KEY


def client(server: OpenAIServer, *, model: str = "openai/scripted", retries: int = 0) -> LiteLLMClient:
    return LiteLLMClient(model, api_base=server.base_url, retries=retries)


def ask(*script: Answer, timeout_s: float = 20.0, retries: int = 0) -> tuple[Reply | Refusal, OpenAIServer]:
    with openai_server(*script) as server:
        return client(server, retries=retries).complete(ASK, max_tokens=64, timeout_s=timeout_s), server


def refusal(outcome: Reply | Refusal) -> Refusal:
    assert isinstance(outcome, Refusal), outcome
    return outcome


def test_a_session_from_a_compile_error_to_a_faster_kernel(key: str, tmp_path: Path):
    problem = make_problem()
    replies = [
        fenced(source("retrun FORGE_OK;")),
        fenced(source("return FORGE_OK; // WRONG")),
        "I need a moment.",
        fenced(source("return FORGE_OK; // right")),
        fenced(source("return FORGE_OK; // FAST")),
    ]
    transcript = tmp_path / "transcript.jsonl"

    def session(author: LLMAuthor) -> list[Trial]:
        history: list[Trial] = []
        while (proposed := author.propose(problem, make_plan(problem), cpu(), history)) is not None:
            if isinstance(proposed, Candidate):
                history.append(evaluate(proposed))
        return history

    with openai_server(*map(reply, replies)) as server:
        author = LLMAuthor(RecordingClient(client(server), transcript), LLMBudget(max_calls=5))
        history = session(author)
    assert [t.outcome for t in history] == ["not built", "mismatch", "passed", "passed"]
    prompts = [r.body["messages"][1]["content"] for r in server.requests]
    expected = [
        "plain is good enough",
        "error: 'retrun' was not declared",
        "NaN where eager is finite",
        "No fenced code block defines forge_launch",
        "faster kernel",
    ]
    for prompt, words in zip(prompts, expected, strict=True):
        assert words in prompt
    assert {r.headers["authorization"] for r in server.requests} == {f"Bearer {KEY}"}
    assert all(KEY not in json.dumps(r.body) for r in server.requests)
    assert author.why_stopped == "5 of 5 LLM calls made"
    assert author.spending.tokens == 750
    assert KEY not in transcript.read_text()
    replayed = session(LLMAuthor(ReplayClient.load(transcript), LLMBudget(max_calls=5)))
    assert [t.candidate for t in replayed] == [t.candidate for t in history]
    assert isinstance(history[-1].verdict, Passed)


def test_the_backend_follows_the_device(key: str):
    problem = make_problem()
    with openai_server(reply(fenced(source(), "cuda"))) as server:
        candidate = LLMAuthor(client(server)).propose(problem, make_plan(problem), cuda(), [])
    assert isinstance(candidate, Candidate)
    assert candidate.backend == "cuda"
    assert "<<<blocks, 256" in server.requests[0].body["messages"][1]["content"]


FAILURES = [
    ("wrong key", failure(401, f"Incorrect API key provided: {KEY}", code="invalid_api_key"), RefusalKind.AUTH),
    ("forbidden", failure(403, "not for you"), RefusalKind.AUTH),
    ("unknown model", failure(404, "no such model", code="model_not_found"), RefusalKind.UNKNOWN_MODEL),
    ("context", failure(400, "maximum context length is 8192 tokens", code="context_length_exceeded"), RefusalKind.TOO_LONG),
    ("bad request", failure(400, "unknown parameter"), RefusalKind.BAD_REQUEST),
    ("quota", failure(429, "You exceeded your current quota", code="insufficient_quota"), RefusalKind.QUOTA),
    ("rate", failure(429, "slow down"), RefusalKind.RATE_LIMITED),
    ("server error", failure(500, f"oops {KEY}"), RefusalKind.UNAVAILABLE),
    ("not json", Answer(503, b"<html>busy</html>"), RefusalKind.UNAVAILABLE),
    ("json cut off", Answer(200, b'{"id": "x", "choices": [{"ind'), RefusalKind.MALFORMED),
    ("no choices", Answer(200, b'{"id": "x", "choices": []}'), RefusalKind.MALFORMED),
    ("wrong json", Answer(200, b'[1, 2, "three"]'), RefusalKind.MALFORMED),
    ("body cut off", Answer(200, reply("hello").body, send_bytes=20), RefusalKind.UNAVAILABLE),
    ("html", Answer(200, b"<html>login</html>", {"Content-Type": "text/html"}), RefusalKind.MALFORMED),
    ("payment", failure(402, "no credit"), RefusalKind.QUOTA),
    ("filter", reply("", finish_reason="content_filter"), RefusalKind.DECLINED),
    ("null content", reply(None), RefusalKind.EMPTY),
    ("no room for text", reply(None, finish_reason="length"), RefusalKind.CUT_OFF),
]


@pytest.mark.parametrize(("answer", "kind"), [row[1:] for row in FAILURES], ids=[row[0] for row in FAILURES])
def test_each_failure_is_a_value_without_the_key(answer: Answer, kind: RefusalKind, key: str):
    outcome = refusal(ask(answer)[0])
    assert outcome.kind is kind, outcome
    assert KEY not in repr(outcome)
    assert outcome.message.startswith(kind.value)


def test_no_server_at_all(key: str):
    absent = LiteLLMClient("openai/scripted", api_base="http://127.0.0.1:9/v1", retries=0)
    outcome = absent.complete(ASK, max_tokens=8, timeout_s=10)
    assert refusal(outcome).kind is RefusalKind.UNAVAILABLE


def test_no_key_at_all(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    outcome, server = ask(reply("hello"))
    assert refusal(outcome).kind is RefusalKind.AUTH
    assert server.requests == []


def test_a_model_without_a_provider():
    outcome = LiteLLMClient("nobody-knows-this", retries=0).complete(ASK, max_tokens=8, timeout_s=10)
    assert refusal(outcome).kind is RefusalKind.UNKNOWN_MODEL


def test_a_storm_of_429_is_not_waited_out(key: str):
    start = time.monotonic()
    outcome, server = ask(failure(429, "slow down", headers={"Retry-After": "3600"}), timeout_s=60, retries=5)
    assert refusal(outcome).kind is RefusalKind.RATE_LIMITED
    assert "3600 s away" in refusal(outcome).message
    assert len(server.requests) == 1
    assert time.monotonic() - start < 30


@pytest.mark.parametrize(
    "first", [failure(429, "slow down", headers={"Retry-After": "0"}), failure(503, "busy", headers={"Retry-After": "0"})],
    ids=["429", "503"],
)  # fmt: skip
def test_a_short_pause_is_bridged(first: Answer, key: str):
    outcome, server = ask(first, first, reply("hello"), retries=2)
    assert isinstance(outcome, Reply)
    assert outcome.text == "hello"
    assert len(server.requests) == 3


def test_retries_end(key: str):
    busy = failure(429, "slow down", headers={"Retry-After": "0"})
    outcome, server = ask(*[busy] * 9, retries=2)
    assert refusal(outcome).kind is RefusalKind.RATE_LIMITED
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    "answer",
    [Answer(before_s=60.0), Answer(body=reply("hello").body, per_byte_s=0.25)],
    ids=["silent", "one byte at a time"],
)
def test_a_server_that_keeps_us_waiting_is_left(answer: Answer, key: str):
    start = time.monotonic()
    outcome, server = ask(answer, timeout_s=1.0, retries=3)
    assert time.monotonic() - start < 20
    assert refusal(outcome).kind is RefusalKind.TIMEOUT
    assert len(server.requests) == 1
    assert refusal(outcome).usage.cost_usd is None


def test_tokens_are_counted_even_where_the_server_does_not(key: str):
    outcome, _ = ask(reply("hello" * 30, usage=None))
    assert isinstance(outcome, Reply)
    assert outcome.usage.completion_tokens == 50
    assert outcome.usage.prompt_tokens > 0


def test_the_price_of_an_unlisted_model_is_unknown_and_that_of_a_listed_one_known(key: str, monkeypatch: pytest.MonkeyPatch):
    with openai_server(reply("hello", usage=(1000, 0)), reply("hello"), reply("hello")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        listed, unlisted = (
            LiteLLMClient(m, retries=0).complete(ASK, max_tokens=8, timeout_s=20) for m in ("openai/gpt-4o", "openai/my-own")
        )
        elsewhere = client(server, model="openai/gpt-4o").complete(ASK, max_tokens=8, timeout_s=20)
    costs = [outcome.usage.cost_usd for outcome in (listed, unlisted, elsewhere)]
    assert costs[1:] == [None, None]
    assert costs[0] is not None
    assert 0 < costs[0] < 1


def test_a_reply_that_repeats_the_key_loses_it(key: str):
    outcome, _ = ask(reply(f"your key is {KEY}"))
    assert isinstance(outcome, Reply)
    assert KEY not in outcome.text


def test_nothing_is_printed_and_settings_are_put_back(
    key: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
):
    import litellm

    caplog.set_level(logging.DEBUG)
    before = (dict(os.environ), list(warnings.filters), litellm.suppress_debug_info)
    for answer in (failure(401, f"bad {KEY}"), reply("hello"), failure(500, f"bad {KEY}")):
        ask(answer)
    assert (dict(os.environ), list(warnings.filters), litellm.suppress_debug_info) == before
    logging.getLogger("openai").debug("the user's own %s", KEY)
    assert "the user's own [key removed]" in caplog.text
    printed = capfd.readouterr()
    assert "litellm" not in (printed.out + printed.err).lower()
    assert KEY not in caplog.text + printed.out + printed.err


IMPORT = """
import logging, os, socket, sys, warnings
logging.basicConfig(level=logging.DEBUG)
reached = []
connect = socket.socket.connect
socket.socket.connect = lambda self, address: (reached.append(address), connect(self, address))[1]
before = dict(os.environ)
from torch_forge.generation.llm.litellm_client import LiteLLMClient
from torch_forge.generation.llm.client import Message
early = "litellm" in sys.modules
client = LiteLLMClient("openai/scripted", api_base=sys.argv[1], retries=1)
same = before == dict(os.environ)
imported_from = list(reached)
outcomes = [client.complete([Message("user", "hello")], max_tokens=8, timeout_s=t) for t in (20, 20, 1)]
print("RESULT", early, same, imported_from, [type(o).__name__ for o in outcomes], "torch" in sys.modules)
raise RuntimeError(outcomes)
"""


@pytest.mark.slow
def test_a_fresh_process_is_left_as_it_was_and_ends_at_once(key: str, tmp_path: Path):
    (tmp_path / ".env").write_text("FROM_DOT_ENV=1\n")
    with openai_server(failure(400, f"bad {KEY}"), reply("hello"), Answer(before_s=100.0)) as server:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "LITELLM_LOG": "DEBUG"}
        command = [sys.executable, "-W", "error::DeprecationWarning", "-c", IMPORT, server.base_url]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90, cwd=tmp_path, env=env)
    assert "RESULT False True [] ['Refusal', 'Reply', 'Refusal'] False" in done.stdout.splitlines(), done.stderr[-3000:]
    assert "Warning" not in done.stderr
    assert "RuntimeError" in done.stderr
    assert KEY not in done.stdout + done.stderr


def test_the_client_does_not_show_its_key():
    assert KEY not in repr(LiteLLMClient("openai/scripted", api_key=KEY))
