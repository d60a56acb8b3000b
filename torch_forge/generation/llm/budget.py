"""How much an LLM may cost, and how much it has: calls, tokens, money, time.

A cap that cannot be checked counts as reached: where money is capped and the price of a call is unknown, the
next call is not made.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch_forge.errors import UsageError
from torch_forge.generation.llm.client import Usage


@dataclass(frozen=True)
class LLMBudget:
    """Caps; None is no cap. The default allows eight calls and needs no price list."""

    max_calls: int | None = 8
    max_tokens: int | None = 200_000
    """Prompt and completion tokens together."""
    max_usd: float | None = None
    max_seconds: float | None = 600.0
    """Wall time spent waiting for the model."""

    def __post_init__(self) -> None:
        for name in ("max_calls", "max_tokens", "max_usd", "max_seconds"):
            cap = getattr(self, name)
            if cap is not None and not cap >= 0:
                raise UsageError(f"{name}={cap!r}: a cap must be zero or more")


@dataclass
class Spending:
    """What has been used of a budget. Not shared between threads."""

    budget: LLMBudget = field(default_factory=LLMBudget)
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    known_usd: float = 0.0
    """Sum over the calls whose price is known."""
    unpriced_calls: int = 0
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    @property
    def cost_usd(self) -> float | None:
        """None if the price of any call is unknown."""
        return None if self.unpriced_calls else self.known_usd

    def charge(self, usage: Usage) -> None:
        """Counts one call, answered or not."""
        self.calls += 1
        self.prompt_tokens += usage.prompt_tokens
        self.completion_tokens += usage.completion_tokens
        self.seconds += usage.seconds
        if usage.cost_usd is None:
            self.unpriced_calls += 1
        else:
            self.known_usd += usage.cost_usd

    def why_stop(self) -> str:
        """The cap that is reached, as one line for the report; empty while another call may be made."""
        b = self.budget
        if b.max_calls is not None and self.calls >= b.max_calls:
            return f"{self.calls} of {b.max_calls} LLM calls made"
        if b.max_tokens is not None and self.tokens >= b.max_tokens:
            return f"{self.tokens} of {b.max_tokens} LLM tokens used"
        if b.max_seconds is not None and self.seconds >= b.max_seconds:
            return f"{self.seconds:.0f} of {b.max_seconds:.0f} seconds spent waiting for the LLM"
        if b.max_usd is not None and self.unpriced_calls:
            return f"the LLM's price is unknown, so the cap of ${b.max_usd:.2f} cannot be kept; cap tokens or calls instead"
        if b.max_usd is not None and self.known_usd >= b.max_usd:
            return f"${self.known_usd:.4f} of ${b.max_usd:.2f} spent on the LLM"
        return ""

    def tokens_left(self, wanted: int) -> int:
        """At most ``wanted`` completion tokens, fewer near the cap."""
        cap = self.budget.max_tokens
        return wanted if cap is None else max(0, min(wanted, cap - self.tokens))

    def seconds_left(self, wanted: float) -> float:
        """At most ``wanted`` seconds, fewer near the cap."""
        cap = self.budget.max_seconds
        return wanted if cap is None else max(0.0, min(wanted, cap - self.seconds))

    def summary(self) -> str:
        """One line for people: ``5 calls, 41200 tokens, cost unknown, 38 s``."""
        cost = "cost unknown" if self.cost_usd is None else f"${self.cost_usd:.4f}"
        return f"{self.calls} calls, {self.tokens} tokens, {cost}, {self.seconds:.0f} s"
