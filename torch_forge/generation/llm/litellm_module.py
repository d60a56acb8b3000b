"""Importing litellm and calling into it with as little as possible left behind in the user's process.

The import would fetch a price list and load ``.env`` files into the environment; a failing call prints advice; log
records and exceptions can hold the API key. That is switched off for as long as it matters and put back. Two things
stay: log filters that cut keys, and the warning filters by which litellm hides pydantic's remarks about its own types.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from torch_forge.errors import LLMError
from torch_forge.generation.llm.scrub import Scrubber

# Set only while litellm is imported: no price list from the network, no .env file into the user's environment.
_IMPORT_ENVIRONMENT = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION"}
_LOGGERS = frozenset({"LiteLLM", "openai", "anthropic", "httpx", "httpcore", "urllib3", "botocore"})
_MODULES = r"(litellm|openai|anthropic|pydantic|httpx|httpcore|aiohttp|botocore|tokenizers|tiktoken)\b"

_our_call: ContextVar[bool] = ContextVar("torch_forge_llm_call", default=False)
"""A context variable, because litellm hands the context of a call on to its logging thread."""
_lock = threading.RLock()
"""Held while litellm is imported and while process-wide settings change."""


def import_litellm() -> Any:
    """The litellm module; the environment is as before. Raises LLMError if it is not installed."""
    with _lock, _import_environment():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # under -W error, a deprecation inside litellm would make it unusable
            before = list(warnings.filters)
            try:
                litellm = importlib.import_module("litellm")
            except ImportError as error:
                raise LLMError(
                    f"litellm cannot be imported: {error}",
                    advice="Install it with `pip install 'torch-forge[llm]'`, or tune without `llm`: templates need none.",
                ) from None
            about_itself = [f for f in warnings.filters if f not in before and f[1] is not None]
        for action, message, category, _, _ in about_itself:
            warnings.filterwarnings(action, getattr(message, "pattern", message) or "", category)  # type: ignore[arg-type]
    return litellm


@contextmanager
def _import_environment() -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update({k: v for k, v in _IMPORT_ENVIRONMENT.items() if k not in before})
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update({k: v for k, v in before.items() if os.environ.get(k) != v})


@dataclass
class Done:
    """How a call ended: a value, or what it raised."""

    value: Any = None
    error: BaseException | None = None


def call_with_deadline(call: Callable[[], Any], limit_s: float, scrub: Scrubber) -> Done | None:
    """``call`` on a quiet daemon thread; None if it is not back within ``limit_s`` seconds.

    A read timeout alone is not enough: a server that sends a byte a second never runs into it. A thread that is
    late is left behind and ends with its socket.
    """
    done = Done()
    finished = threading.Event()

    def work() -> None:
        try:
            with _quiet(scrub):
                done.value = call()
        except BaseException as error:  # the boundary to a foreign library: what it raises becomes a value
            done.error = error
        finally:
            finished.set()

    threading.Thread(target=work, name="torch-forge-llm", daemon=True).start()
    return done if finished.wait(limit_s) else None


@contextmanager
def _quiet(scrub: Scrubber) -> Iterator[None]:
    """No printed advice, no log records, no warning that ``-W error`` would turn into a failure. Once per thread."""
    litellm = importlib.import_module("litellm")
    with _lock:
        _process.enter(litellm)
        _gate.install(scrub)
    _our_call.set(True)
    try:
        yield
    finally:
        with _lock:
            _process.leave(litellm)


class _ProcessSettings:
    """What is global to the process: changed by the first call of ours that runs, put back by the last."""

    def __init__(self) -> None:
        self._calls = 0
        self._suppressed = False
        self._filter: Any = None

    def enter(self, litellm: Any) -> None:
        self._calls += 1
        if self._calls == 1:
            self._suppressed = getattr(litellm, "suppress_debug_info", False)
            warnings.filterwarnings("ignore", module=_MODULES)
            self._filter = warnings.filters[0]
        litellm.suppress_debug_info = True

    def leave(self, litellm: Any) -> None:
        self._calls -= 1
        if self._calls == 0:
            litellm.suppress_debug_info = self._suppressed
            if self._filter in warnings.filters:
                warnings.filters.remove(self._filter)  # type: ignore[attr-defined]


class _LogGate(logging.Filter):
    """Drops what our calls log and cuts keys from all else. Stays on the loggers: litellm logs after a call too."""

    def __init__(self) -> None:
        super().__init__()
        self._scrub = Scrubber()

    def install(self, scrub: Scrubber) -> None:
        self._scrub = scrub
        for logger in _library_loggers():
            logger.addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        if _our_call.get():
            return False
        message = record.getMessage()
        scrubbed = self._scrub(message)
        if scrubbed != message:
            record.msg, record.args = scrubbed, ()
        return True


def _library_loggers() -> list[logging.Logger]:
    """Those that exist, children included: a filter does not see what a child logger passes up."""
    known = {name for name in logging.Logger.manager.loggerDict if name.replace(" ", ".").split(".")[0] in _LOGGERS}
    return [logging.getLogger(name) for name in known | _LOGGERS]


_process = _ProcessSettings()
_gate = _LogGate()
