"""The ``call`` install: a function that knows some of its calls by heart and passes every other call on unchanged.

Two guards decide. The exact one builds a key of the whole call and looks it up (``keys``); it is right and takes some
microseconds. What it decided for a call of positional tensors is remembered in a native guard of torch, the one that
compiled code uses, which compares types, layouts, element types, devices and dispatch state in a fraction of a microsecond.
"""

from __future__ import annotations

import copy
import functools
import importlib
import logging
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling
from torch.utils import _pytree as pytree

from torch_forge.dispatch.autograd import Recipe, flat_outputs, with_gradient
from torch_forge.dispatch.keys import CallKey, ReadCall, ambient_is_plain, read_call
from torch_forge.dispatch.shadow import ShadowGuard
from torch_forge.errors import UsageError

LOG = logging.getLogger("torch_forge")
MOST_SEEN = 128
"""Unknown keys that are counted; later ones are served but not noted."""
MOST_REMEMBERED = 8
"""Native guards tried for each number of arguments; beyond, the exact guard's lookup is faster than the walk."""

_function_modes = torch._C._len_torch_function_stack
_dispatch_modes = torch._C._len_torch_dispatch_stack
_grad_mode = torch.is_grad_enabled

Remembered = tuple[Callable[..., bool], bool | None, Callable[..., Any], "CompiledCall | None"]
"""(native guard, grad mode it holds for or None for both, how to serve, whose case or None for the original function)"""


@dataclass(frozen=True, eq=False)
class CompiledCall:
    """One known case."""

    key: CallKey
    run: Callable[..., Any]
    """Takes the call's tensors in order; returns one tensor, or the leaves of the output in order."""
    structure: pytree.TreeSpec | None
    """Of the user's output; None: what ``run`` returns is it."""
    differentiable: bool
    """Whether calls that need a gradient are served; else they run the original."""
    random: bool
    shadow: ShadowGuard | None

    def assemble(self, outputs: Any) -> Any:
        """Flat outputs in the user's structure."""
        return outputs if self.structure is None else pytree.tree_unflatten(flat_outputs(outputs), self.structure)

    def serve(self, *tensors: Tensor) -> Any:
        """Compute without a gradient."""
        return self.assemble(self.run(*tensors))


class ForgedFunction:
    """``fn`` with forged cases. Calls it does not know, or cannot know to be safe, are ``fn``'s own, bit for bit.

    Under torch.compile, torch.export and torch.jit.trace it is ``fn`` too, so no graph breaks and no foreign operators.
    """

    def __init__(self, fn: Callable[..., Any], *, name: str) -> None:
        # A module's __dict__ (its parameters) must not be copied, hence no ``updated``.
        functools.update_wrapper(self, fn, updated=())
        self.name = name
        self._fn = fn
        self._lock = threading.Lock()
        self._table: dict[CallKey, CompiledCall] = {}
        self._remembered: dict[int, tuple[Remembered, ...]] = {}
        self._seen: dict[CallKey, int] = {}

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return self._fn(*args, **kwargs)
        if not kwargs and not _function_modes() and not _dispatch_modes() and forward_ad._current_level < 0:
            for guard, grad_mode, serve, call in self._remembered.get(len(args), ()):
                if guard(*args) and (grad_mode is None or grad_mode is _grad_mode()):
                    try:
                        return serve(*args)
                    except (RuntimeError, IndexError) as error:
                        if call is None:
                            raise
                        return self._after_failure(call, error, args, kwargs)
        return self._decide(args, kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    @property
    def reference(self) -> Callable[..., Any]:
        """The original function."""
        return self._fn

    @property
    def seen(self) -> dict[CallKey, int]:
        """Keyed calls that were not known, with how often each came; at most ``MOST_SEEN``."""
        return dict(self._seen)

    def __len__(self) -> int:
        return len(self._table)

    def __bool__(self) -> bool:
        return True

    def add(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        run: Callable[..., Any],
        *,
        structure: pytree.TreeSpec | None = None,
        differentiable: bool = True,
        random: bool = False,
        shadow: ShadowGuard | None = None,
    ) -> CallKey:
        """Serve calls like this one with ``run``; an earlier entry of the same key is replaced.

        args, kwargs: an example; only layouts and scalar values matter. The autocast state of now belongs to the key.
        random: the function draws random numbers (``run`` does not), so its gradient needs their state kept.
        Raises UsageError if such a call can never be recognised.
        """
        call = read_call(args, kwargs)
        if call is None:
            raise UsageError(
                f"{self.name}: a call with these arguments cannot be recognised again",
                advice="Arguments must be plain strided tensors, numbers, strings, None, or tuples, lists, dicts of these.",
            )
        entry = CompiledCall(call.key, run, structure, differentiable, random, shadow)
        with self._lock:
            self._table = {**self._table, call.key: entry}
            self._remembered = {}
            self._seen.pop(call.key, None)
        return call.key

    def remove(self, key: CallKey) -> None:
        """Forget one case; unknown keys are ignored."""
        with self._lock:
            self._table = {k: v for k, v in self._table.items() if k != key}
            self._remembered = {}

    def remove_all(self) -> None:
        """Forget every case: from now on this is the original function."""
        with self._lock:
            self._table, self._remembered = {}, {}

    def _decide(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The exact guard."""
        read = read_call(args, kwargs) if ambient_is_plain() else None
        if read is None:
            return self._fn(*args, **kwargs)
        call = self._table.get(read.key)
        if call is None:
            self._note(read)
            return self._fn(*args, **kwargs)
        needs_grad = _grad_mode() and any(t.requires_grad for t in read.tensors)
        # torch cannot save an inference tensor for a backward pass; eager often need not.
        if needs_grad and (not call.differentiable or any(t.is_inference() for t in read.tensors)):
            return self._fn(*args, **kwargs)
        serve = self._differentiable(call, read) if needs_grad else call.run if call.structure is None else call.serve
        if call.shadow is not None and call.shadow.due():
            return self._compare(call, call.shadow, serve, read)
        self._remember(read, serve, call)
        try:
            return serve(*read.tensors)
        except (RuntimeError, IndexError) as error:
            return self._after_failure(call, error, args, kwargs)

    def _differentiable(self, call: CompiledCall, read: ReadCall) -> Callable[..., Any]:
        arguments = read.arguments()

        def reference(tensors: Sequence[Tensor]) -> Any:
            args, kwargs = arguments(tensors)
            return self._fn(*args, **kwargs)

        recipe = Recipe(call.run, reference, call.random)

        def serve(*tensors: Tensor) -> Any:
            outputs = with_gradient(recipe, tensors)
            if call.structure is None:
                return outputs if len(outputs) > 1 else outputs[0]
            return call.assemble(outputs)

        return serve

    def _remember(self, read: ReadCall, serve: Callable[..., Any], call: CompiledCall | None) -> None:
        """Spare the exact guard next time, where the native one sees everything that matters."""
        if not read.is_flat or read.key.autocast or (call is not None and call.shadow is not None):
            return
        guard = native_guard(read.tensors)
        if guard is None:
            return
        watched = call is not None and any(t.requires_grad for t in read.tensors)
        verdict = (guard, _grad_mode() if watched else None, serve, call)
        count = len(read.tensors)
        with self._lock:
            if self._table.get(read.key) is call:
                # Known cases come first; a walk over unknown ones must not cost them time.
                known = [v for v in self._remembered.get(count, ()) if v[3] is not None]
                unknown = [v for v in self._remembered.get(count, ()) if v[3] is None]
                verdicts = [verdict, *known, *unknown] if call is not None else [*known, verdict, *unknown]
                self._remembered = {**self._remembered, count: tuple(verdicts[:MOST_REMEMBERED])}

    def _note(self, read: ReadCall) -> None:
        """Count an unknown call; one that comes again is remembered as such, so that it costs little."""
        key = read.key
        if key not in self._seen and len(self._seen) >= MOST_SEEN:
            return
        self._seen[key] = self._seen.get(key, 0) + 1
        if self._seen[key] == 2:
            self._remember(read, functools.partial(self._original, key), None)

    def _original(self, key: CallKey, /, *args: Any) -> Any:
        self._seen[key] = self._seen.get(key, 0) + 1
        return self._fn(*args)

    def _compare(self, call: CompiledCall, shadow: ShadowGuard, serve: Callable[..., Any], read: ReadCall) -> Any:
        """Serve one call and check it; after a disagreement the original's result is returned and the case is dropped."""
        args, kwargs = read.arguments()(read.tensors)
        expected = self._fn(*args, **kwargs)
        try:
            actual = serve(*read.tensors)
        except (RuntimeError, IndexError) as error:
            self._demote(call, f"it failed: {error}")
            return expected
        with torch.no_grad():
            wanted, found = (
                [t for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor)] for outputs in (expected, actual)
            )
            if shadow.compare(found, wanted):
                return actual
        self._demote(call, "its result disagrees with the original's")
        return expected

    def _after_failure(self, call: CompiledCall, error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the original, which succeeds or raises what the user expects.

        A kernel at fault is dropped; a bad index or a full memory is not the kernel's fault.
        """
        if not isinstance(error, (IndexError, torch.OutOfMemoryError)):
            self._demote(call, f"it failed: {error}")
        return self._fn(*args, **kwargs)

    def _demote(self, call: CompiledCall, why: str) -> None:
        with self._lock:
            known = self._table.get(call.key) is call
            if known:
                self._table = {k: v for k, v in self._table.items() if v is not call}
                self._remembered = {}
        if known:
            LOG.warning("torch_forge: a kernel of %s is no longer used, the original runs instead: %s", self.name, why)

    def __repr__(self) -> str:
        return f"<forged {self.name}: {len(self._table)} known calls of {self._fn!r}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> ForgedFunction:
        """A copy around a copy of the function (a copied module's own method), with the same known cases."""
        twin = ForgedFunction(copy.deepcopy(self._fn, memo), name=self.name)
        twin._table = self._table
        return twin

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Found again by name where it replaced the function; otherwise rebuilt around it, with no known cases."""
        name = getattr(self, "__qualname__", "")
        try:
            found: object = importlib.import_module(str(getattr(self, "__module__", "")))
            for part in name.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError, ValueError):
            found = None
        return name if found is self else (_rebuild, (self._fn, self.name))


def _rebuild(fn: Callable[..., Any], name: str) -> ForgedFunction:
    return ForgedFunction(fn, name=name)


def native_guard(tensors: tuple[Tensor, ...]) -> Callable[..., bool] | None:
    """A fast test for "arguments exactly like these, in this dispatch state"; None if this torch has none.

    It compares exact types, shapes, strides, dtypes, devices, requires_grad, and the tensors' dispatch keys under the
    thread's included and excluded keys: autocast, functorch, tracing and inference mode change those. It sees neither
    grad mode nor the stacks of Python modes. Its number of arguments is fixed.
    """
    try:
        from torch._C._dynamo.guards import TensorGuards

        guard: Callable[..., bool] = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
        return guard if guard(*tensors) else None
    except (ImportError, TypeError, AttributeError):  # a private interface of torch: without it calls are only slower
        return None
