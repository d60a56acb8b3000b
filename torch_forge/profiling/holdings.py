"""What a callable holds: the modules, loose tensors and random generators that running it may touch.

A user's model is a module, a bound method, a partial, a closure over a module, or an object with one inside. State is
saved, and devices are read, from what is found here; so the search goes through containers, closures, the globals
that a function names, and the attributes of plain objects, but never into library code. From a module it follows only
containers: an attribute may lead to a trainer, and from there to everything.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils import _pytree as pytree

REGISTRIES = frozenset({"_parameters", "_buffers", "_modules"})
"""Attributes of a module that torch fills; everything else in it is the author's."""
_STATE = (torch.Tensor, nn.Module, torch.Generator)
MAX_DEPTH = 8
"""Containers, closures and objects inside one another; deeper than this nobody hides a model."""


@dataclass(frozen=True, eq=False)
class Holdings:
    """Everything found, each object once, in the order of discovery."""

    modules: tuple[nn.Module, ...]
    """Outermost modules; their registered children are not listed."""
    tensors: tuple[torch.Tensor, ...]
    """Tensors that are neither parameters nor buffers."""
    generators: tuple[torch.Generator, ...]

    @property
    def submodules(self) -> Iterator[nn.Module]:
        """Every module, children included, each once."""
        seen: set[nn.Module] = set()
        for root in self.modules:
            for module in root.modules():
                if module not in seen:
                    seen.add(module)
                    yield module

    @property
    def parameters(self) -> Iterator[nn.Parameter]:
        """Every parameter once."""
        seen: set[int] = set()
        for module in self.submodules:
            for parameter in module._parameters.values():
                if parameter is not None and id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield parameter

    @property
    def buffers(self) -> Iterator[torch.Tensor]:
        """Every buffer once, persistent or not."""
        seen: set[int] = set()
        for module in self.submodules:
            for buffer in module._buffers.values():
                if buffer is not None and id(buffer) not in seen:
                    seen.add(id(buffer))
                    yield buffer


def holdings_of(*values: object) -> Holdings:
    """Search the values and what they hold."""
    leaves = list(_leaves(values, {}, 0, True))
    return Holdings(
        modules=tuple(leaf for leaf in leaves if isinstance(leaf, nn.Module)),
        tensors=tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor)),
        generators=tuple(leaf for leaf in leaves if isinstance(leaf, torch.Generator)),
    )


def tensors_of(value: object) -> list[torch.Tensor]:
    """Every tensor in arguments or in an output, in a fixed order: containers, dataclasses, HF outputs and caches."""
    return list(holdings_of(value).tensors)


def _leaves(value: object, seen: dict[int, object], depth: int, objects: bool) -> Iterator[object]:
    """seen: by id; it keeps the objects alive, so that no id is used twice. objects: whether to look into plain ones."""
    if isinstance(value, (str, bytes, int, float, complex, type(None))) or id(value) in seen or depth > MAX_DEPTH:
        return
    seen[id(value)] = value
    if isinstance(value, _STATE):
        yield value
        if isinstance(value, nn.Module):
            yield from _unregistered(value, seen)
        return
    for child in _children(value, objects):
        yield from _leaves(child, seen, depth + 1, objects)


def _unregistered(root: nn.Module, seen: dict[int, object]) -> Iterator[object]:
    """State in plain attributes of a module and its children."""
    modules = list(root.modules())
    for module in modules:
        for registered in (module, *module._parameters.values(), *module._buffers.values()):
            seen[id(registered)] = registered
    for module in modules:
        for name, value in vars(module).items():
            if name not in REGISTRIES:
                yield from _leaves(value, seen, 0, False)


def _children(value: object, objects: bool) -> Iterable[object]:
    match value:
        case Mapping():
            return list(value.values())
        case list() | tuple() | set() | frozenset():
            return list(value)
        case functools.partial():
            return [value.func, *value.args, *value.keywords.values()]
        case types.MethodType():
            return [value.__self__]
        case types.FunctionType():
            return _function_children(value)
        case types.ModuleType() | type() | types.BuiltinFunctionType():
            return []
    if dataclasses.is_dataclass(value):
        return [getattr(value, f.name, None) for f in dataclasses.fields(value)]
    leaves = pytree.tree_leaves(value)  # a container type that somebody registered
    if len(leaves) != 1 or leaves[0] is not value:
        return leaves
    if not objects or type(value).__module__.partition(".")[0] in ("torch", "builtins", "numpy"):
        return []
    return list(getattr(value, "__dict__", {}).values())


def _function_children(function: types.FunctionType) -> list[object]:
    """Closure, defaults, and those globals it names that are state; other functions are not followed by name."""
    closure = inspect.getclosurevars(function)
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return [*closure.nonlocals.values(), *defaults, *(g for g in closure.globals.values() if isinstance(g, _STATE))]
