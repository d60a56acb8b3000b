"""For tests of the LLM author: problems, plans, replies, a scripted client, and a judge that goes by marks in the source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from tests.support.entries import make_device
from torch_forge.generation.llm.client import Message, Refusal, Reply, Usage
from torch_forge.records.device import DeviceInfo
from torch_forge.records.kernels import BuildFailed, Built, Candidate, Plan
from torch_forge.records.outcomes import Comparison, Mismatch, Passed, Timing, Trial, Verdict
from torch_forge.records.problem import Graph, Node, Problem
from torch_forge.records.tensors import contiguous

X = contiguous((64, 8), "float32")
RELU_GRAPH = Graph((X,), (Node("aten.relu.default", ("%i0",), (), (X,)),), ("%v0",))
SIGNATURE = (
    'extern "C" int forge_launch(const ForgeTensor* in, const ForgeTensor* out, const int64_t* dims, int64_t config,\n'
    "                            int64_t threads, void* workspace, void* stream)"
)


def make_problem(**changes: Any) -> Problem:
    """relu of float32[64, 8]."""
    return replace(Problem("relu", RELU_GRAPH), **changes)


def make_plan(problem: Problem, **changes: Any) -> Plan:
    plan = Plan(
        problem=problem.digest, pattern="pointwise", bytes_moved=4096, flops=512, bound="memory", bound_us=0.2,
        target_us=0.3, lowered=None, steps=("read and write 16 bytes at a time, since the bound is memory",),
    )  # fmt: skip
    return replace(plan, **changes)


def cpu() -> DeviceInfo:
    return make_device()


def cuda() -> DeviceInfo:
    return make_device(type="cuda", name="NVIDIA H200", arch="sm_90", units=132, features=())


def source(body: str = "return FORGE_OK;", before: str = "") -> str:
    """A whole file whose forge_launch has this body."""
    return f'#include "forge.h"\n{before}{SIGNATURE} {{\n  {body}\n}}\n'


def fenced(code: str, language: str = "cpp") -> str:
    return f"Here it is.\n\n```{language}\n{code}```\n\nIt is right."


class ScriptedClient:
    """Hands out outcomes in order and keeps what it was asked."""

    model = "scripted/model"

    def __init__(self, outcomes: Iterable[str | Reply | Refusal], usage: Usage | None = None) -> None:
        self._outcomes = list(outcomes)
        self._usage = usage or Usage(100, 50, 0.001, 1.0)
        self.asked: list[tuple[Message, ...]] = []
        self.limits: list[tuple[int, float]] = []

    def complete(self, messages: Sequence[Message], *, max_tokens: int, timeout_s: float) -> Reply | Refusal:
        self.asked.append(tuple(messages))
        self.limits.append((max_tokens, timeout_s))
        outcome = self._outcomes.pop(0)
        return Reply(outcome, "stop", "model", self._usage) if isinstance(outcome, str) else outcome


COMPILER_LOG = """[1/2] c++ -I/home/someone/venv/include -c /home/someone/.cache/forge/staging-7/main.cpp
/home/someone/.cache/forge/staging-7/main.cpp: In function 'int forge_launch(...)':
/home/someone/.cache/forge/staging-7/main.cpp:5:3: error: 'retrun' was not declared in this scope; did you mean 'return'?
    5 |   retrun FORGE_OK;
      |   ^~~~~~
ninja: build stopped: subcommand failed.
"""
EAGER = Timing(20.0, 19.0, 21.0, 50)


def failed_build(candidate: Candidate) -> Trial:
    return Trial(candidate, BuildFailed(candidate, ("c++",), 1, COMPILER_LOG, 1.0), None, (), 1.0)


def judged(candidate: Candidate, verdict: Verdict, *comparisons: Comparison) -> Trial:
    built = Built(candidate, "/nowhere/kernel.so", "0" * 64, 2.0, {"registers": 40})
    return Trial(candidate, built, verdict, comparisons, 3.0)


def mismatch() -> Mismatch:
    return Mismatch("special 3", 0, (5, 7), float("nan"), 0.25, 0.25, "NaN where eager is finite", 3, 512)


def timed(candidate: Candidate, median_us: float) -> Trial:
    comparison = Comparison(0, Timing(median_us, median_us, median_us, 50), EAGER, 20.0 / median_us, 1.0, 3.0)
    return judged(candidate, Passed(()), comparison)


def evaluate(candidate: Candidate) -> Trial:
    """``retrun`` does not compile, ``WRONG`` is wrong, ``FAST`` takes 5 us, the rest 10 us."""
    if "retrun" in candidate.source:
        return failed_build(candidate)
    if "WRONG" in candidate.source:
        return judged(candidate, mismatch())
    return timed(candidate, 5.0 if "FAST" in candidate.source else 10.0)
