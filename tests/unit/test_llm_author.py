"""The author: one candidate a call, failures as values, budgets kept, transcripts that play back."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest

from tests.support.llm import ScriptedClient, cpu, evaluate, fenced, make_plan, make_problem, source
from torch_forge.errors import LLMError, UsageError
from torch_forge.generation.llm.author import LLMAuthor
from torch_forge.generation.llm.budget import LLMBudget, Spending
from torch_forge.generation.llm.client import Message, Refusal, RefusalKind, Reply, Usage
from torch_forge.generation.llm.litellm_module import import_litellm
from torch_forge.generation.llm.scrub import Scrubber
from torch_forge.generation.llm.transcript import RecordingClient, ReplayClient, read_transcript
from torch_forge.records.kernels import Candidate, Config, Origin
from torch_forge.records.outcomes import Trial

PROBLEM = make_problem()
PLAN = make_plan(PROBLEM)
GOOD = fenced(source())
KEY = "sk-test-0123456789abcdef"


def propose(author: LLMAuthor, history: list[Trial] | None = None) -> Candidate | Refusal | None:
    return author.propose(PROBLEM, PLAN, cpu(), history or [])


def test_a_reply_becomes_a_candidate():
    candidate = propose(LLMAuthor(ScriptedClient([GOOD])))
    assert isinstance(candidate, Candidate)
    assert (candidate.origin, candidate.author, candidate.backend) == (Origin.LLM, "scripted/model", "cpu")
    assert candidate.configs == (Config({}, 4),)
    assert (candidate.problem, candidate.program, candidate.statics) == (PROBLEM.digest, None, {})


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("no code", RefusalKind.NO_SOURCE),
        (f"```cpp\n{source()}", RefusalKind.CUT_OFF),
        (fenced(source(before="#include <torch/all.h>\n")), RefusalKind.FORBIDDEN),
    ],
    ids=["prose", "cut off", "torch"],
)
def test_what_is_no_candidate_is_told_to_the_model(text: str, kind: RefusalKind):
    client = ScriptedClient([text, GOOD, GOOD])
    author = LLMAuthor(client, refuse=lambda code, backend: [f"no torch on {backend}"] if "torch/all.h" in code else [])
    refusal = propose(author)
    assert isinstance(refusal, Refusal)
    assert refusal.kind is kind
    candidate = propose(author)
    assert isinstance(candidate, Candidate)
    assert refusal.message in client.asked[1][1].content
    propose(author, [evaluate(candidate)])
    assert refusal.message not in client.asked[2][1].content


def test_the_same_kernel_again_is_no_candidate():
    author = LLMAuthor(ScriptedClient([GOOD, GOOD]))
    first = propose(author)
    assert isinstance(first, Candidate)
    again = propose(author, [evaluate(first)])
    assert isinstance(again, Refusal)
    assert again.kind is RefusalKind.DUPLICATE


@pytest.mark.parametrize(
    ("budget", "usage", "calls", "why"),
    [
        (LLMBudget(max_calls=2), Usage(1, 1, 0.0, 0.0), 2, "2 of 2 LLM calls"),
        (LLMBudget(max_tokens=60_000), Usage(20_000, 20_000, 0.0, 0.0), 2, "80000 of 60000 LLM tokens"),
        (LLMBudget(max_tokens=100), Usage(1, 1, 0.0, 0.0), 0, "token cap"),
        (LLMBudget(max_usd=0.05), Usage(1, 1, 0.03, 0.0), 2, "$0.0600 of $0.05"),
        (LLMBudget(max_usd=5.0), Usage(1, 1, None, 0.0), 1, "price is unknown"),
        (LLMBudget(max_seconds=50), Usage(1, 1, 0.0, 30.0), 2, "60 of 50 seconds"),
        (LLMBudget(max_calls=0), Usage(1, 1, 0.0, 0.0), 0, "0 of 0"),
    ],
    ids=["calls", "tokens", "no room for a prompt", "money", "unknown price", "seconds", "none at all"],
)
def test_a_budget_ends_the_asking(budget: LLMBudget, usage: Usage, calls: int, why: str):
    client = ScriptedClient(["no code"] * 9, usage)
    author = LLMAuthor(client, budget)
    outcomes = [propose(author) for _ in range(5)]
    assert len(client.asked) == calls
    assert outcomes[calls:] == [None] * (5 - calls)
    assert why in author.why_stopped


def test_an_unknown_price_does_not_stop_a_run_without_a_money_cap():
    author = LLMAuthor(ScriptedClient(["no code"] * 3, Usage(10, 5, None, 1.0)))
    for _ in range(3):
        propose(author)
    assert author.why_stopped == ""
    assert author.spending.summary() == "3 calls, 45 tokens, cost unknown, 3 s"


def test_one_call_may_not_pass_the_caps():
    client = ScriptedClient([GOOD, GOOD], Usage(1000, 1000, 0.0, 90.0))
    author = LLMAuthor(client, LLMBudget(max_tokens=14_000, max_seconds=100), max_tokens=20_000, timeout_s=60)
    propose(author)
    propose(author)
    (first_tokens, first_s), (second_tokens, second_s) = client.limits
    assert first_tokens - second_tokens == 2000
    assert (first_s, second_s) == (60, 10)


def test_a_cap_below_zero_is_misuse():
    with pytest.raises(UsageError, match="max_usd"):
        LLMBudget(max_usd=float("nan"))


@pytest.mark.parametrize(
    ("kind", "calls"),
    [(RefusalKind.AUTH, 1), (RefusalKind.QUOTA, 1), (RefusalKind.TIMEOUT, 3), (RefusalKind.RATE_LIMITED, 3)],
)
def test_a_model_that_does_not_answer_is_given_up(kind: RefusalKind, calls: int):
    client = ScriptedClient([Refusal(kind, "because")] * 9)
    author = LLMAuthor(client)
    outcomes = [propose(author) for _ in range(5)]
    assert [o is not None for o in outcomes] == [True] * calls + [False] * (5 - calls)
    assert author.why_stopped == "scripted/model: because"


def test_spending_adds_up():
    spending = Spending(LLMBudget())
    spending.charge(Usage(10, 5, 0.25, 1.0))
    spending.charge(Usage(10, 5, 0.5, 1.0))
    assert (spending.calls, spending.tokens, spending.cost_usd) == (2, 30, 0.75)
    spending.charge(Usage(1, 1, None, 0.0))
    assert spending.cost_usd is None


def test_a_transcript_plays_back_without_keys(tmp_path: Path):
    path = tmp_path / "llm.jsonl"
    replies = [f"the key is {KEY}\n{GOOD}", Refusal(RefusalKind.TIMEOUT, "late"), fenced(source("return 1;"))]
    recording = RecordingClient(ScriptedClient(replies), path, Scrubber([KEY]))
    recorded = [propose(author) for author in [LLMAuthor(recording)] for _ in range(3)]
    assert KEY not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    replay = LLMAuthor(ReplayClient.load(path))
    assert [propose(replay) for _ in range(3)] == recorded
    ended = propose(replay)
    assert isinstance(ended, Refusal)
    assert ended.kind is RefusalKind.EXHAUSTED
    assert propose(replay) is None


def test_a_replay_can_insist_on_the_prompts(tmp_path: Path):
    path = tmp_path / "llm.jsonl"
    RecordingClient(ScriptedClient(["hello"]), path, Scrubber()).complete([Message("user", "a")], max_tokens=1, timeout_s=1)
    replay = ReplayClient.load(path, match_prompts=True)
    other = replay.complete([Message("user", "b")], max_tokens=1, timeout_s=1)
    assert isinstance(other, Refusal)
    assert isinstance(replay.complete([Message("user", "a")], max_tokens=1, timeout_s=1), Reply)


def test_a_transcript_cut_off_by_a_crash_still_loads_and_a_damaged_one_says_so(tmp_path: Path):
    path = tmp_path / "llm.jsonl"
    RecordingClient(ScriptedClient(["hello"]), path, Scrubber()).complete([Message("user", "a")], max_tokens=1, timeout_s=1)
    line = path.read_text()
    path.write_text(line + line[:40])
    assert len(read_transcript(path)) == 1
    path.write_text(json.dumps({"record": "Exchange"}) + "\n")
    with pytest.raises(LLMError, match=r"llm\.jsonl"):
        read_transcript(path)


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        (f"bad key {KEY}", KEY),
        ("GET https://host/v1?key=abcdef123&x=1", "abcdef123"),
        ("Authorization: Bearer abcdefgh12345678", "abcdefgh12345678"),
        ("https://me:passw0rd@host/v1", "passw0rd"),
        ("my-own-secret-99 and my-own-secret-99", "my-own-secret-99"),
        ("as URL my%2Fown%2Bsecret1", "my%2Fown%2Bsecret1"),
    ],
    ids=["sk", "query", "bearer", "user part", "value", "quoted"],
)
def test_keys_are_cut_out(text: str, hidden: str):
    environ = {"SOME_API_KEY": "my-own-secret-99", "MORE_TOKEN": "my/own+secret1", "A_SECRET": "required", "PATH": "/bin"}
    scrub = Scrubber.for_process(environ)
    assert hidden not in scrub(text)
    assert "secret" not in repr(scrub)


def test_code_is_left_alone():
    code = source("/* required */ return skinny_matmul_kernel_f32_v2(sk_accumulator_index_long);")
    scrub = Scrubber.for_process({"A_SECRET": "required", "B_KEY": "/usr/share/key1", "C_TOKEN": "1"})
    assert scrub(code) == code


def test_without_litellm_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "litellm", None)
    with pytest.raises(LLMError) as caught:
        import_litellm()
    assert "pip install" in caught.value.advice
