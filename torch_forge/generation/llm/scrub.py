"""Take keys out of text before it leaves: errors, transcripts, replies, log records.

Two nets: the values that this process holds (environment variables that look like credentials, the key it was
given), and, for messages only, the shapes that credentials have. Shapes are not applied to code, which they could spoil.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote, urlsplit

REMOVED = "[key removed]"

_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTHORIZATION", re.IGNORECASE)
_SHAPES = (
    re.compile(r"\b(?:sk|pk|rk|xai|glpat)-[A-Za-z0-9_\-]{12,}|\b(?:gsk|hf|gh[pousr])_[A-Za-z0-9]{20,}"),
    re.compile(r"\bAKIA[0-9A-Z]{16}\b|\bAIza[0-9A-Za-z_\-]{30,}|\bya29\.[0-9A-Za-z_\-]{20,}"),
    re.compile(r"(?i)(?<=\bbearer )[A-Za-z0-9._~+/=\-]{8,}"),
    re.compile(r"(?i)(?:(?<=[?&]key=)|(?<=[?&]token=)|(?<=[?&]api[_-]key=))[^&\s\"']+"),
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),
)


class Scrubber:
    """Replaces secrets by a fixed word. Its ``repr`` shows none of them."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {s.strip() for s in secrets} - {""}
        known |= {quote(s, safe="") for s in known}
        # Longest first, so that a key which contains another goes as a whole.
        self._known = sorted(known, key=len, reverse=True)

    @classmethod
    def for_process(cls, environ: Mapping[str, str], *given: str | None) -> Scrubber:
        """Knows the values of credential-like variables, and ``given``: keys, or URLs that may hold a password."""
        values = [value for name, value in environ.items() if _NAME.search(name) and _like_a_secret(value)]
        for secret in filter(None, given):
            parts = urlsplit(secret) if "://" in secret else None
            values.append(secret if parts is None else parts.password or "")
        return cls(values)

    def values(self, text: str) -> str:
        """``text`` without the known secrets; safe for code."""
        for secret in self._known:
            text = text.replace(secret, REMOVED)
        return text

    def __call__(self, text: str) -> str:
        """``text`` without the known secrets and without what has the shape of one."""
        text = self.values(text)
        for shape in _SHAPES:
            text = shape.sub(REMOVED, text)
        return text

    def __repr__(self) -> str:
        return f"Scrubber({len(self._known)} values)"


def _like_a_secret(value: str) -> bool:
    """Not a path, and not a word such as ``required``, which would be cut out of ordinary text."""
    value = value.strip()
    return (
        len(value) >= 8 and not value.startswith(("/", "./", "~")) and (len(value) >= 16 or any(c.isdigit() for c in value))
    )
