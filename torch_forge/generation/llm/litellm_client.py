"""Any provider, through litellm, with limits that hold whatever the other side does.

Retries are ours: bounded in number, in the wait between them and in total time. A provider that asks for an
hour's patience is given up, not waited for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace

from torch_forge.generation.llm.answers import read_answer, read_failure
from torch_forge.generation.llm.client import NOTHING_USED, Message, Refusal, RefusalKind, Reply, Usage
from torch_forge.generation.llm.litellm_module import call_with_deadline, import_litellm
from torch_forge.generation.llm.scrub import Scrubber

DEADLINE_GRACE_S = 1.0
"""litellm gets this long to report its own timeout before its thread is left behind."""
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 30.0
"""A provider that asks for more patience than this is given up for now."""
_RETRIED = frozenset({RefusalKind.RATE_LIMITED, RefusalKind.UNAVAILABLE, RefusalKind.MALFORMED})


class LiteLLMClient:
    """``provider/model`` as litellm spells it; keys come from the provider's own environment variable."""

    def __init__(self, model: str, *, api_base: str | None = None, api_key: str | None = None, retries: int = 2) -> None:
        """api_base: another endpoint of the same protocol, for local models. retries: further tries of one call.

        Raises LLMError if litellm is not installed.
        """
        self._litellm = import_litellm()
        self._model = model
        self._api_base = api_base
        self._api_key = api_key
        self._retries = retries

    @property
    def model(self) -> str:
        """``provider/model``."""
        return self._model

    def __repr__(self) -> str:
        return f"LiteLLMClient({self._model!r})"

    def complete(self, messages: Sequence[Message], *, max_tokens: int, timeout_s: float) -> Reply | Refusal:
        """See ``Client.complete``."""
        # Read anew for each call: a key may have been set after this object was made.
        scrub = Scrubber.for_process(os.environ, self._api_key, self._api_base)
        start_s = time.monotonic()
        wait_s = FIRST_WAIT_S
        spent = NOTHING_USED
        for attempt in range(self._retries + 1):
            left_s = timeout_s - (time.monotonic() - start_s)
            outcome, asked_s = self._once(messages, max_tokens, left_s, scrub)
            spent = _add(spent, outcome.usage)
            if isinstance(outcome, Reply) or outcome.kind not in _RETRIED or attempt == self._retries:
                break
            wait_s = wait_s if asked_s is None else asked_s
            if wait_s > min(LONGEST_WAIT_S, timeout_s - (time.monotonic() - start_s)):
                outcome = replace(outcome, message=f"{outcome.message} (given up: the next try is {wait_s:.0f} s away)")
                break
            time.sleep(wait_s)
            wait_s = min(2 * wait_s + FIRST_WAIT_S, LONGEST_WAIT_S)
        return replace(outcome, usage=replace(spent, seconds=time.monotonic() - start_s))

    def _once(
        self, messages: Sequence[Message], max_tokens: int, limit_s: float, scrub: Scrubber
    ) -> tuple[Reply | Refusal, float | None]:
        """One request; also the seconds that the provider asks to wait before the next, if it says."""
        if limit_s <= 0:
            return Refusal(RefusalKind.TIMEOUT, "timeout: no time left for this call"), None

        def request() -> object:
            return self._litellm.completion(
                model=self._model,
                messages=[{"role": m.role, "content": m.content} for m in messages],
                max_tokens=max_tokens,
                timeout=limit_s,
                num_retries=0,  # litellm's own
                max_retries=0,  # the provider SDK's, which would obey a Retry-After of an hour
                api_base=self._api_base,
                api_key=self._api_key,
                **{"no-log": True},
            )

        done = call_with_deadline(request, limit_s + DEADLINE_GRACE_S, scrub)
        if done is None:
            # It may still be answered and billed, so its cost is unknown.
            return Refusal(RefusalKind.TIMEOUT, f"timeout: no answer within {limit_s:.0f} s", Usage(0, 0, None, 0.0)), None
        if done.error is not None:
            return read_failure(done.error, scrub)
        # The price list is for the provider's own endpoint; another one has its own prices.
        return read_answer(done.value, messages, scrub, priced=self._api_base is None), None


def _add(a: Usage, b: Usage) -> Usage:
    cost = None if a.cost_usd is None or b.cost_usd is None else a.cost_usd + b.cost_usd
    return Usage(a.prompt_tokens + b.prompt_tokens, a.completion_tokens + b.completion_tokens, cost, 0.0)
