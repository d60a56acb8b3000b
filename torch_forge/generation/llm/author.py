"""The language model as an author of candidates: one call, one candidate, the history fed back.

``propose`` is the generation protocol: the search asks for a candidate, builds, checks and times it as any other, and
comes back with a longer history. What never became a candidate (no code in the reply, cut-off code, forbidden
code) is remembered here and told to the model in the next prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch_forge.generation.llm.budget import LLMBudget, Spending
from torch_forge.generation.llm.client import FINAL, Client, Refusal, RefusalKind, Reply
from torch_forge.generation.llm.prompt import build_messages, estimate_tokens
from torch_forge.generation.llm.reply import NoSource, extract_source
from torch_forge.records.device import DeviceInfo
from torch_forge.records.kernels import Candidate, Config, Origin, Plan
from torch_forge.records.outcomes import Trial
from torch_forge.records.problem import Problem

MAX_FAILED_CALLS = 3
"""This many calls in a row without any answer, and the model is given up."""
MIN_REPLY_TOKENS = 256
"""With fewer left in the budget no whole kernel fits a reply."""


class LLMAuthor:
    """Writes candidates with one model within one budget. Not for use from several threads at once."""

    def __init__(
        self,
        client: Client,
        budget: LLMBudget | None = None,
        *,
        max_tokens: int = 16_000,
        timeout_s: float = 180.0,
        prompt_tokens: int = 24_000,
        refuse: Callable[[str, str], Sequence[str]] | None = None,
    ) -> None:
        """max_tokens, timeout_s: limits of one call, seconds; prompt_tokens: longest prompt, estimated.

        refuse: given a source and a backend, the reasons why it should not even be built; None leaves that to the judge.
        """
        self._client = client
        self._max_tokens = max_tokens
        self._timeout_s = timeout_s
        self._prompt_tokens = prompt_tokens
        self._refuse = refuse
        self._notes: dict[str, str] = {}
        self._failed_calls = 0
        self._given_up = ""
        self.spending = Spending(budget or LLMBudget())

    @property
    def name(self) -> str:
        """The model, as it stands in ``Candidate.author``."""
        return self._client.model

    @property
    def why_stopped(self) -> str:
        """Why ``propose`` returns None from now on, as one line; empty while it goes on."""
        return self._given_up or self.spending.why_stop()

    def propose(
        self, problem: Problem, plan: Plan, device: DeviceInfo, history: Sequence[Trial]
    ) -> Candidate | Refusal | None:
        """One candidate, or why this call brought none, or None when the budget is spent or the model given up.

        history: trials of this problem, oldest first, by any author. A Refusal is not final: call again.
        """
        if self.why_stopped:
            return None
        messages = build_messages(
            problem, plan, device, history, note=self._notes.get(problem.workload, ""), limit_tokens=self._prompt_tokens
        )
        if isinstance(messages, Refusal):
            return self._count(messages)
        asked = sum(estimate_tokens(m.content) for m in messages)
        room = self.spending.tokens_left(asked + self._max_tokens) - asked
        if room < min(MIN_REPLY_TOKENS, self._max_tokens):
            self._given_up = f"the next prompt would pass the LLM token cap ({self.spending.tokens} tokens used)"
            return None
        timeout_s = self.spending.seconds_left(self._timeout_s)
        outcome = self._client.complete(messages, max_tokens=room, timeout_s=timeout_s)
        self.spending.charge(outcome.usage)
        if isinstance(outcome, Refusal):
            return self._count(outcome)
        self._failed_calls = 0
        return self._candidate(problem, device.type, history, outcome)

    def _count(self, refusal: Refusal) -> Refusal:
        self._failed_calls += 1
        if refusal.kind in FINAL or self._failed_calls >= MAX_FAILED_CALLS:
            self._given_up = f"{self.name}: {refusal.message}"
        return refusal

    def _candidate(self, problem: Problem, backend: str, history: Sequence[Trial], reply: Reply) -> Candidate | Refusal:
        found = extract_source(reply.text, reply.finish_reason)
        if isinstance(found, NoSource):
            return self._reject(problem, Refusal(found.kind, found.reason, reply.usage))
        reasons = self._refuse(found.code, backend) if self._refuse is not None else ()
        if reasons:
            return self._reject(problem, Refusal(RefusalKind.FORBIDDEN, "; ".join(reasons), reply.usage))
        candidate = llm_candidate(problem, backend, found.code, self.name)
        if any(t.candidate.digest == candidate.digest for t in history):
            return self._reject(problem, Refusal(RefusalKind.DUPLICATE, "This exact kernel was tried already.", reply.usage))
        self._notes.pop(problem.workload, None)
        return candidate

    def _reject(self, problem: Problem, refusal: Refusal) -> Refusal:
        self._notes[problem.workload] = refusal.message
        return refusal


def llm_candidate(problem: Problem, backend: str, source: str, author: str) -> Candidate:
    """A free-form kernel: one config, for the exact workload only, pointers aligned to one element."""
    specs = (*problem.graph.inputs, *problem.graph.output_specs)
    align_bytes = max((s.itemsize for s in specs), default=1)
    return Candidate(
        problem=problem.digest,
        name=problem.name,
        backend=backend,
        source=source,
        origin=Origin.LLM,
        author=author,
        configs=(Config({}, align_bytes),),
    )
