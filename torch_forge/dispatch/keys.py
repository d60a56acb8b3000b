"""Say exactly which call this is: a hashable key of a call's arguments and of the torch state that changes its meaning.

Two calls with one key may be served by one kernel; everything that cannot be keyed (a tensor subclass, an object, a mode
that watches operators) has no key and stays with the original function.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

TENSORS = frozenset({Tensor, torch.nn.Parameter})
"""Exact types; a subclass may mean anything."""
SCALARS = frozenset({bool, int, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format})
CONTAINERS = frozenset({tuple, list, dict})
AUTOCAST_DEVICES = ("cpu", "cuda")

AutocastState = tuple[tuple[str, bool, torch.dtype], ...]


class CallKey(NamedTuple):
    """Equal keys: the same case."""

    structure: Hashable
    """How the leaves are arranged: (number of positional arguments, keyword names), or a pytree spec."""
    leaves: tuple[Hashable, ...]
    """A tensor as (shape, stride, dtype, device); anything else as (type, value)."""
    autocast: AutocastState
    """Empty if autocast is off everywhere."""


@dataclass(frozen=True, slots=True)
class ReadCall:
    """The arguments of one call, flattened."""

    key: CallKey
    leaves: tuple[object, ...]
    tensors: tuple[Tensor, ...]
    """The leaves that are tensors, in order."""
    positions: tuple[int, ...]
    """Which leaves those are."""

    @property
    def is_flat(self) -> bool:
        """Positional tensors only."""
        return self.key.structure == (len(self.tensors), ())

    def arguments(self) -> Callable[[Sequence[object]], tuple[tuple[Any, ...], dict[str, Any]]]:
        """A function from tensors, in order, to the call's (args, kwargs) with those; it keeps only the scalars alive."""
        positions, structure = self.positions, self.key.structure
        template: list[Any] = list(self.leaves)
        for position in positions:
            template[position] = None

        def rebuild(tensors: Sequence[object]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            leaves = template.copy()
            for position, tensor in zip(positions, tensors, strict=True):
                leaves[position] = tensor
            if isinstance(structure, pytree.TreeSpec):
                args, kwargs = pytree.tree_unflatten(leaves, structure)
                return args, kwargs
            count, names = cast("tuple[int, tuple[str, ...]]", structure)
            return tuple(leaves[:count]), dict(zip(names, leaves[count:], strict=True))

        return rebuild


def ambient_is_plain() -> bool:
    """Whether nothing watches or transforms operators: no mode, no functorch transform, no tracing, no forward-mode AD."""
    return not (
        torch._C._len_torch_function_stack()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
    )


def autocast_state() -> AutocastState:
    """One (device, enabled, dtype) for each of ``AUTOCAST_DEVICES``; empty if none is enabled."""
    if not torch._C._is_any_autocast_enabled():
        return ()
    return tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in AUTOCAST_DEVICES)


def read_call(args: tuple[object, ...], kwargs: Mapping[str, object]) -> ReadCall | None:
    """The call, flattened and keyed; None if any argument cannot be keyed."""
    structure: Hashable
    if kwargs:
        names = tuple(sorted(kwargs))
        leaves: tuple[object, ...] = (*args, *(kwargs[name] for name in names))
        structure = (len(args), names)
    else:
        leaves, structure = args, (len(args), ())
    if not CONTAINERS.isdisjoint(map(type, leaves)):
        flat, structure = pytree.tree_flatten((args, dict(sorted(kwargs.items()))))
        leaves = tuple(flat)
    tensors: list[Tensor] = []
    keys: list[Hashable] = []
    positions: list[int] = []
    for position, leaf in enumerate(leaves):
        kind = type(leaf)
        if kind in TENSORS:
            positions.append(position)
            key = tensor_key(leaf)  # type: ignore[arg-type]
            tensors.append(leaf)  # type: ignore[arg-type]
        else:
            key = _scalar_key(kind, leaf)
        if key is None:
            return None
        keys.append(key)
    return ReadCall(CallKey(structure, tuple(keys), autocast_state()), leaves, tuple(tensors), tuple(positions))


def tensor_key(tensor: Tensor) -> Hashable | None:
    """(shape, stride, dtype, device) of a plain strided tensor; None for any other."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return None
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor) or torch._is_functional_tensor(tensor):
        return None
    return (tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)


def _scalar_key(kind: type, leaf: object) -> Hashable | None:
    if kind in SCALARS:
        return (kind, leaf)
    if kind is float:
        return (kind, leaf or repr(leaf))  # 0.0 == -0.0, yet 1 / x tells them apart
    return None
