"""litellm's answers and exceptions to records. Pure: needs neither litellm nor a network.

Reads by name, not by class, so that a version which moves a class or leaves out a field gives a less
precise record, not a crash.
"""

from __future__ import annotations

import email.utils
import math
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from torch_forge.generation.llm.client import Message, Refusal, RefusalKind, Reply, Usage
from torch_forge.generation.llm.prompt import estimate_tokens
from torch_forge.generation.llm.scrub import Scrubber

MESSAGE_CHARS = 500

_KINDS: Mapping[str, RefusalKind] = {
    "ContextWindowExceededError": RefusalKind.TOO_LONG,
    "ContentPolicyViolationError": RefusalKind.DECLINED,
    "Timeout": RefusalKind.TIMEOUT,
    "APITimeoutError": RefusalKind.TIMEOUT,
    "AuthenticationError": RefusalKind.AUTH,
    "PermissionDeniedError": RefusalKind.AUTH,
    "RateLimitError": RefusalKind.RATE_LIMITED,
    "NotFoundError": RefusalKind.UNKNOWN_MODEL,
    "ServiceUnavailableError": RefusalKind.UNAVAILABLE,
    "BadGatewayError": RefusalKind.UNAVAILABLE,
    "InternalServerError": RefusalKind.UNAVAILABLE,
    "APIConnectionError": RefusalKind.UNAVAILABLE,
    "APIResponseValidationError": RefusalKind.MALFORMED,
    "JSONSchemaValidationError": RefusalKind.MALFORMED,
    "BadRequestError": RefusalKind.BAD_REQUEST,
    "UnprocessableEntityError": RefusalKind.BAD_REQUEST,
    "APIError": RefusalKind.UNAVAILABLE,
    "ValueError": RefusalKind.MALFORMED,
    "LookupError": RefusalKind.MALFORMED,
    "TypeError": RefusalKind.MALFORMED,
    "AttributeError": RefusalKind.MALFORMED,
}
"""Exception class name -> kind; the first hit along the class's bases counts."""

_PREFIX = re.compile(r"^(?:(?:litellm\.)?\w*(?:Error|Exception|Timeout)(?: Error)?(?:: | - ))+")
"""The class names that litellm puts before a provider's message, often three deep."""
_MAYBE_BILLED = frozenset({RefusalKind.TIMEOUT, RefusalKind.MALFORMED})

_STATUS: Mapping[int, RefusalKind] = {
    401: RefusalKind.AUTH,
    402: RefusalKind.QUOTA,
    403: RefusalKind.AUTH,
    404: RefusalKind.UNKNOWN_MODEL,
    413: RefusalKind.TOO_LONG,
}
"""HTTP status -> kind, for errors whose class says no more than that something failed."""

_FINER: tuple[tuple[RefusalKind, str, RefusalKind], ...] = (
    (RefusalKind.RATE_LIMITED, "quota", RefusalKind.QUOTA),
    (RefusalKind.UNAVAILABLE, "received response", RefusalKind.MALFORMED),
    (RefusalKind.UNAVAILABLE, "invalid response", RefusalKind.MALFORMED),
    (RefusalKind.BAD_REQUEST, "context length", RefusalKind.TOO_LONG),
    (RefusalKind.BAD_REQUEST, "context window", RefusalKind.TOO_LONG),
    (RefusalKind.UNAVAILABLE, "missing credentials", RefusalKind.AUTH),
    (RefusalKind.UNAVAILABLE, "api key is missing", RefusalKind.AUTH),
    (RefusalKind.UNAVAILABLE, "api_key client option must be set", RefusalKind.AUTH),
    (RefusalKind.BAD_REQUEST, "llm provider not provided", RefusalKind.UNKNOWN_MODEL),
)
"""Where litellm files different failures under one class: kind, words in the message (lower case), the real kind."""


def read_failure(error: BaseException, scrub: Scrubber) -> tuple[Refusal, float | None]:
    """The kind of failure, and the seconds that the provider asks to wait, if it says."""
    name = next((c.__name__ for c in type(error).__mro__ if c.__name__ in _KINDS), "")
    kind = _KINDS.get(name, RefusalKind.UNAVAILABLE)
    text = _PREFIX.sub("", scrub(" ".join(str(error).split())))
    if kind is RefusalKind.UNAVAILABLE:
        kind = _STATUS.get(getattr(error, "status_code", 0), kind)
    kind = next((finer for coarse, words, finer in _FINER if kind is coarse and words in text.lower()), kind)
    # Timed out, garbled or broken off: the provider may have done the work and bill it.
    cost = None if kind in _MAYBE_BILLED or "connection error" in text.lower() else 0.0
    return Refusal(kind, f"{kind.value}: {text[:MESSAGE_CHARS]}", Usage(0, 0, cost, 0.0)), _wait_s(error)


def _wait_s(error: BaseException) -> float | None:
    """Seconds from a ``Retry-After`` header: a number or an HTTP date."""
    headers: Any = getattr(getattr(error, "response", None), "headers", None)
    headers = headers or getattr(error, "litellm_response_headers", None) or {}
    value = headers.get("retry-after")
    if not isinstance(value, str):
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def read_answer(answer: Any, messages: Sequence[Message], scrub: Scrubber, *, priced: bool) -> Reply | Refusal:
    """A Reply, or the Refusal that an answer without text amounts to.

    priced: litellm's price list applies; another endpoint than the provider's own has its own prices.
    """
    choices = getattr(answer, "choices", None) or []
    message = getattr(choices[0], "message", None) if choices else None
    text = getattr(message, "content", None)
    finish = str(getattr(choices[0], "finish_reason", None) or "stop") if choices else ""
    usage = _usage(answer, messages, text if isinstance(text, str) else "", priced)
    if not choices:
        return Refusal(RefusalKind.MALFORMED, "malformed: the answer holds no choices", usage)
    if finish == "content_filter":
        return Refusal(RefusalKind.DECLINED, "declined: the provider's filter stopped the answer", usage)
    if not isinstance(text, str) or not text.strip():
        if finish == "length":
            return Refusal(RefusalKind.CUT_OFF, "cut off: all tokens went before any text; raise max_tokens", usage)
        return Refusal(RefusalKind.EMPTY, f"empty: the answer holds no text (finish reason {finish})", usage)
    return Reply(scrub.values(text), finish, scrub(str(getattr(answer, "model", None) or "")), usage)


def _usage(answer: Any, messages: Sequence[Message], text: str, priced: bool) -> Usage:
    counts = getattr(answer, "usage", None)
    prompt = _count(getattr(counts, "prompt_tokens", None)) or sum(estimate_tokens(m.content) for m in messages)
    completion = _count(getattr(counts, "completion_tokens", None)) or estimate_tokens(text)
    hidden: Any = getattr(answer, "_hidden_params", None) or {}
    cost = hidden.get("response_cost") if priced else None
    known = isinstance(cost, (int, float)) and math.isfinite(cost) and cost >= 0
    return Usage(prompt, completion, cost if known else None, 0.0)


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0
