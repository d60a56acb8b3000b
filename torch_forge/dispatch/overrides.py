"""The ``ops`` install: known calls of one ATen operator on one device go to a forged operator, others to torch's own kernel.

The override sits at the device's dispatch key, below autograd, so gradients, autocast and fake tensors are untouched. It
changes the operator for the whole process until ``revert``; it costs a few microseconds a call, worth it for operators
that take tens.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from torch_forge.dispatch.keys import CallKey, read_call
from torch_forge.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11

LOG = logging.getLogger("torch_forge")
_INSTALLED: set[tuple[str, str]] = set()
_LOCK = threading.Lock()


class AtenOverride:
    """One overload (``aten::gelu``, ``aten::add.Tensor``) at one dispatch key (``CPU`` or ``CUDA``).

    Add cases, then ``install()`` and ``revert()``, or use it as a context manager. Several overrides coexist, one for each
    operator and key; any order of reverting is fine.
    """

    def __init__(self, op: str, device_key: str) -> None:
        """Raises UsageError if torch has no such overload, no kernel of its own for it at this key, or ``takes_numbers``."""
        if device_key not in ("CPU", "CUDA"):
            raise UsageError(f"no device key {device_key!r}", advice="Use 'CPU' or 'CUDA'.")
        self.op = op
        self.device_key = device_key
        try:
            if takes_numbers(op):
                raise UsageError(
                    f"{op} also takes Python numbers as tensors, which no override can pass on",
                    advice="Forge a region around it instead.",
                )
            self._original = torch.library.get_kernel(op, device_key)
        except (RuntimeError, AttributeError) as error:
            raise UsageError(
                f"{op} has no {device_key} kernel to fall back to", advice="Override the operators it is made of instead."
            ) from error
        self._table: dict[CallKey, Callable[..., Any]] = {}
        self._shapes: frozenset[tuple[int, ...]] = frozenset()
        """Of the first argument of every known call: most unknown calls end here, unread."""
        self._library: torch.library.Library | None = None

    def add(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], run: Callable[..., Any]) -> None:
        """Serve calls like this one with ``run``, given the call's tensors in order. Layouts and scalars are the key.

        kwargs as the dispatcher passes them: arguments that equal their default are left out. Raises UsageError.
        """
        call = read_call(args, kwargs)
        if call is None or not args or call.leaves[0] is not args[0] or not call.tensors:
            raise UsageError(f"{self.op}: a call with these arguments cannot be recognised again")
        with _LOCK:
            self._table = {**self._table, call.key._replace(autocast=()): run}
            self._shapes |= {tuple(call.tensors[0].shape)}

    def install(self) -> None:
        """Start serving. Raises UsageError if another override of this operator and key is in place."""
        with _LOCK:
            if (self.op, self.device_key) in _INSTALLED:
                raise UsageError(f"{self.op} is already overridden on {self.device_key}", advice="Add to that override.")
            library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
            with warnings.catch_warnings():
                # torch warns that a kernel is overridden; that is what was asked for.
                warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered kernel.*")
                library.impl(  # type: ignore[no-untyped-call]
                    self.op.removeprefix("aten::"), self._call, self.device_key, with_keyset=True
                )
            self._library = library
            _INSTALLED.add((self.op, self.device_key))

    def revert(self) -> None:
        """torch's own kernel again, for every call; nothing happens if the override is not installed."""
        with _LOCK:
            if self._library is not None:
                self._library._destroy()  # type: ignore[no-untyped-call]
                self._library = None
                _INSTALLED.discard((self.op, self.device_key))

    def __enter__(self) -> Self:
        self.install()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.revert()

    def _call(self, keyset: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        call = read_call(args, kwargs) if getattr(args[0], "shape", None) in self._shapes else None
        run = None if call is None else self._table.get(call.key._replace(autocast=()))
        if call is None or run is None:
            return self._original.call_boxed(keyset, *args, **kwargs)
        try:
            return run(*call.tensors)
        except IndexError:
            pass  # torch's own kernel raises what the user expects
        except RuntimeError as error:
            if not isinstance(error, torch.OutOfMemoryError):
                self._drop(call.key, error)
        return self._original.call_boxed(keyset, *args, **kwargs)

    def _drop(self, key: CallKey, error: RuntimeError) -> None:
        with _LOCK:
            self._table = {k: v for k, v in self._table.items() if k != key._replace(autocast=())}
        LOG.warning("torch_forge: a kernel of %s is no longer used, torch's own runs instead: it failed: %s", self.op, error)


def takes_numbers(op: str) -> bool:
    """Whether an overload has a sibling with a number where it has a tensor (``add.Tensor`` and ``add.Scalar``).

    ``x + 1`` then reaches ``add.Tensor`` with the number as a tensor of a special kind (it does not take part in type
    promotion), which torch turns into a plain number on its way into Python and cannot take back.
    """
    name, _, overload = op.removeprefix("aten::").partition(".")
    packet = getattr(torch.ops.aten, name)
    mine = getattr(packet, overload or "default")._schema.arguments
    siblings = [getattr(packet, o)._schema.arguments for o in packet.overloads()]
    return any(
        str(a.type) == "Tensor" and str(b.type) in ("number", "Scalar", "float", "int")
        for other in siblings
        for a, b in zip(mine, other, strict=False)
    )
