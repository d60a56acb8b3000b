"""Run a user's model as often as we like and leave no trace of it.

Running a model moves random number generators, updates batch-norm statistics, fills caches, counts steps, and may write
into its inputs. ``preserved`` takes note of all of that, can go back to it between runs (so that every run is the same
run), and puts it back at the end, whatever happened. Values are restored in place, so that whoever holds the tensors
sees them; only tensors whose values changed are written.

Parameters are the exception: a copy would double the memory of a large model, and no model changes its parameters in
forward. Their version counters are watched, and a change is reported.
"""

from __future__ import annotations

import logging
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torch_forge.profiling.flags import saved_flags
from torch_forge.profiling.holdings import Holdings, holdings_of

logger = logging.getLogger(__name__)

_MUTABLE = (dict, list, set, deque)


@contextmanager
def preserved(target: Callable[..., Any], *arguments: object) -> Iterator[State]:
    """Everything that running ``target`` on the arguments could change is as before at the end, also after an exception.

    Covers the generators of torch (CPU, CUDA), ``random`` and numpy; buffers, modes, gradients, attributes and hooks of
    every module that the target holds; tensors it closes over; the argument tensors; torch's global flags. Gradients are
    set aside inside the block. What is done to the model on purpose (installing kernels) belongs outside the block.
    """
    state = State(holdings_of(target), holdings_of(arguments))
    with saved_flags(), _gradients_aside(state):
        try:
            yield state
        finally:
            state.rewind(thorough=True)
            state.report_changed_parameters()


class State:
    """A point to which a model can be taken back."""

    def __init__(self, held: Holdings, given: Holdings) -> None:
        """held: of the target; given: of its arguments."""
        self.parameters = list(held.parameters)
        self.arguments = list(given.tensors)
        tensors = {id(t): t for t in [*held.buffers, *held.tensors, *given.tensors]}
        for parameter in self.parameters:
            tensors.pop(id(parameter), None)
        self._tensors = [_SavedTensor.of(t) for t in tensors.values() if not t.is_meta]
        self._modules = [_SavedModule.of(m) for m in held.submodules]
        self._versions = [_version(p) for p in self.parameters]
        self._generators = _Generators((*held.generators, *given.generators))

    def rewind(self, *, thorough: bool = False) -> None:
        """Back to the start. thorough: compare values even where no version counter moved; a kernel may write raw memory."""
        for module in self._modules:
            module.restore()
        for tensor in self._tensors:
            tensor.restore(thorough)
        self._generators.restore()

    def report_changed_parameters(self) -> None:
        """One warning if running the model changed parameters."""
        pairs = zip(self.parameters, self._versions, strict=True)
        changed = sum(_version(p) != version for p, version in pairs)
        if changed:
            logger.warning("running the model changed %d of its parameters in place; they are not restored", changed)


def _version(tensor: torch.Tensor) -> int:
    """Moves with every in-place change; -1 for inference tensors, which do not count."""
    return -1 if tensor.is_inference() else tensor._version


@dataclass(eq=False, slots=True)
class _SavedTensor:
    tensor: torch.Tensor
    copy: torch.Tensor
    """On the host: device memory is the scarce one while tuning."""
    version: int
    """When the values were last known to be the saved ones."""
    requires_grad: bool
    has_history: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _SavedTensor:
        copy = tensor.detach().cpu() if tensor.device.type != "cpu" else tensor.detach().clone()
        return cls(tensor, copy, _version(tensor), tensor.requires_grad, tensor.grad_fn is not None)

    def restore(self, thorough: bool) -> None:
        tensor = self.tensor
        if tensor.grad_fn is not None and not self.has_history and not tensor._is_view():
            tensor.detach_()
        if tensor.requires_grad != self.requires_grad and tensor.is_leaf:
            tensor.requires_grad_(self.requires_grad)
        moved = self.version == -1 or _version(tensor) != self.version
        if (moved or thorough) and self._differs():
            with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                if tensor.shape == self.copy.shape:
                    tensor.copy_(self.copy)
                else:
                    tensor.data = self.copy.to(tensor.device)
        self.version = _version(tensor)

    def _differs(self) -> bool:
        """Values that cannot be compared (sparse, quantised) count as different only if their version moved."""
        if self.tensor.layout != torch.strided or self.tensor.is_quantized:
            return _version(self.tensor) != self.version
        return not torch.equal(self.tensor.detach(), self.copy.to(self.tensor.device))


@dataclass(eq=False, slots=True)
class _SavedModule:
    module: nn.Module
    attributes: dict[str, Any]
    contents: dict[str, Any]
    """Shallow copies of attributes that are containers, registries and hooks among them."""
    requires_grad: dict[str, bool]

    @classmethod
    def of(cls, module: nn.Module) -> _SavedModule:
        attributes = dict(vars(module))
        contents = {name: value.copy() for name, value in attributes.items() if isinstance(value, _MUTABLE)}
        flags = {name: p.requires_grad for name, p in module._parameters.items() if p is not None}
        return cls(module, attributes, contents, flags)

    def restore(self) -> None:
        """By the instance dictionary: ``train()`` and ``__setattr__`` may be overridden."""
        current = vars(self.module)
        for name in current.keys() - self.attributes.keys():
            del current[name]
        current.update(self.attributes)
        for name, content in self.contents.items():
            _refill(self.attributes[name], content)
        for name, flag in self.requires_grad.items():
            parameter = self.module._parameters[name]
            if parameter is not None and parameter.requires_grad != flag:
                parameter.requires_grad_(flag)


def _refill(container: Any, content: Any) -> None:
    """Give a container its saved content back, in place, if it changed; elements are compared by identity."""
    if isinstance(container, set):
        same = container == content
    elif isinstance(container, dict):
        same = len(container) == len(content) and all(
            a is b and container[a] is content[b] for a, b in zip(container, content, strict=True)
        )
    else:
        same = len(container) == len(content) and all(a is b for a, b in zip(container, content, strict=True))
    if not same:
        container.clear()
        (container.extend if isinstance(container, (list, deque)) else container.update)(content)


class _Generators:
    """States of every random number generator that a model could draw from."""

    def __init__(self, own: tuple[torch.Generator, ...]) -> None:
        self._own = [(generator, generator.get_state()) for generator in own]
        self._cpu = torch.get_rng_state()
        # Asking for the states would start CUDA; before that there is nothing to keep.
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
        self._python = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy = numpy.random.get_state() if numpy is not None else None

    def restore(self) -> None:
        for generator, state in self._own:
            generator.set_state(state)
        torch.set_rng_state(self._cpu)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)


@contextmanager
def _gradients_aside(state: State) -> Iterator[None]:
    """Take every ``.grad`` off for the block: whatever is accumulated inside is dropped, and no copy is needed."""
    leaves = [t for t in [*state.parameters, *state.arguments] if t.is_leaf and not t.is_inference()]
    kept = [(leaf, leaf.grad) for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    try:
        yield
    finally:
        for leaf, grad in kept:
            leaf.grad = grad
