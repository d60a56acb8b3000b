"""Which operations one run of a model makes, in order: the same ones that a captured graph will hold.

A dispatch mode sits below autograd, where composite operations (``linear``, ``softmax``) have become the operations
that have kernels, and sees every call with its real arguments. The profiler cannot tell a zero-dimensional tensor from
a number and knows no modules, so its times are laid over this list (``trace``). With a clock, the mode is also the timer
for machines on which the profiler cannot see the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """One operation."""

    op: str
    """Without overload: ``aten.gelu``."""
    shapes: Shapes
    """Of its tensor arguments, in the order of the schema, zero-dimensional ones as ``()``."""
    module: str
    """Class of the innermost module, empty outside any."""


Finish = Callable[[], float]
"""Tells the microseconds of a call, once all work is done."""


class Observer(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves this class untyped
    """Lists operations; with ``start``, also times them."""

    supports_higher_order_operators = True

    def __init__(self, modules: list[str], start: Callable[[], Callable[[], Finish]] | None = None) -> None:
        """modules: the class names of the running modules, innermost last; start: begin timing, returns what ends it."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[Seen] = []
        self.finish: list[Finish] = []
        self._modules = modules
        self._start = start

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Note the call and pass it on."""
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled() and _is_composite(func):
            # Without autograd in between, composite operations arrive whole; a graph never holds them.
            with self:
                return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
        if self._start is None:
            result = func(*args, **kwargs)
        else:
            stop = self._start()
            result = func(*args, **kwargs)
            self.finish.append(stop())
        self.seen.append(Seen(_op_name(func), _shapes(func, args, kwargs), self._modules[-1] if self._modules else ""))
        return result


def observed(run: Callable[[], object]) -> list[Seen]:
    """The operations of one run."""
    with _module_names() as modules:
        observer = Observer(modules)
        with observer:
            run()
    return observer.seen


def timed(run: Callable[[], object], device: torch.device) -> list[tuple[Seen, float]]:
    """The operations of one run with their microseconds, each timed on its own.

    On CUDA by events, less what a pair of events costs by itself; the gaps between small launches are counted in.
    """
    start = _cuda_clock(device) if device.type == "cuda" else _cpu_clock
    with _module_names() as modules:
        observer = Observer(modules, start)
        with observer:
            run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return [(seen, finish()) for seen, finish in zip(observer.seen, observer.finish, strict=True)]


def _cpu_clock() -> Callable[[], Finish]:
    begin = time.perf_counter_ns()

    def stop() -> Finish:
        elapsed_us = (time.perf_counter_ns() - begin) / 1e3
        return lambda: elapsed_us

    return stop


def _cuda_clock(device: torch.device) -> Callable[[], Callable[[], Finish]]:
    own_us = 0.0

    def start() -> Callable[[], Finish]:
        begin, end = torch.Event(device, enable_timing=True), torch.Event(device, enable_timing=True)
        begin.record(torch.cuda.current_stream(device))

        def stop() -> Finish:
            end.record(torch.cuda.current_stream(device))
            return lambda: max(0.0, begin.elapsed_time(end) * 1e3 - own_us)

        return stop

    empty = start()()
    torch.cuda.synchronize(device)
    own_us = empty()
    return start


@contextmanager
def _module_names() -> Iterator[list[str]]:
    """The class names of the running modules, innermost last; by global hooks, so that no module is altered."""
    names: list[str] = []

    def enter(module: nn.Module, _: object) -> None:
        names.append(type(module).__name__)

    def leave(*_: object) -> None:
        if names:
            names.pop()

    before = register_module_forward_pre_hook(enter)
    after = register_module_forward_hook(leave, always_call=True)
    try:
        yield names
    finally:
        before.remove()
        after.remove()


def _is_composite(func: Any) -> bool:
    return isinstance(func, torch._ops.OpOverload) and torch._C._dispatch_has_kernel_for_dispatch_key(
        f"{func._schema.name}.{func._overloadname}".removesuffix(".default"), "CompositeImplicitAutograd"
    )


def _op_name(func: Any) -> str:
    schema = getattr(func, "_schema", None)
    return str(schema.name).replace("::", ".") if schema is not None else f"higher_order.{getattr(func, '__name__', func)}"


def _shapes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Shapes:
    schema = getattr(func, "_schema", None)
    names = [a.name for a in schema.arguments[len(args) :]] if schema is not None else list(kwargs)
    given = [*args, *(kwargs[name] for name in names if name in kwargs)]
    return tuple(tuple(int(n) for n in t.shape) for t in pytree.tree_leaves(given) if isinstance(t, torch.Tensor))
