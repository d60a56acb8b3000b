"""What is to be made faster: a model or function, and one sample call of it.

People pass a tensor, a tuple, a dict, or by mistake a data loader. All of it becomes one ``Call`` here, or an error
that says what to pass instead; later stages see only ``target(*args, **kwargs)``.
"""

from __future__ import annotations

import copy
import functools
import inspect
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from torch_forge.errors import UsageError
from torch_forge.profiling.holdings import Holdings, holdings_of, tensors_of

_UNCHANGING = (torch.Tensor, nn.Module, torch.Generator, types.FunctionType, types.ModuleType, type, str, bytes, int, float)


@dataclass(frozen=True, eq=False)
class Call:
    """The arguments of one call, spelled out: ``Call((x,), {"mask": m})``."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, sample: object) -> Call:
        """A tensor: one argument; a tuple or list: positional; a mapping: keywords. Raises UsageError for anything else."""
        if isinstance(sample, Call):
            return sample
        if isinstance(sample, torch.Tensor) or _is_namedtuple(sample):
            return cls((sample,))
        if isinstance(sample, (tuple, list)):
            if isinstance(sample, torch.Size) or (sample and all(type(n) is int for n in sample)):
                raise UsageError(
                    f"the sample {tuple(sample)} is a list of numbers, not of inputs",
                    advice="A shape? Pass torch.randn(shape, device=...). Really these numbers? Pass Call((8, 128)).",
                )
            return cls(tuple(sample))
        if isinstance(sample, Mapping):
            if not all(isinstance(key, str) for key in sample):
                raise UsageError("a dict sample names arguments, and its keys are no strings", advice=_DICT_ADVICE)
            return cls((), dict(sample))
        raise UsageError(f"cannot call a model with a sample of type {type(sample).__name__}", advice=_sample_advice(sample))

    @cached_property
    def tensors(self) -> list[torch.Tensor]:
        """Every tensor of the call, each once."""
        return tensors_of((self.args, dict(self.kwargs)))

    def isolated(self) -> Call:
        """The same tensors in fresh containers; other mutable objects (key-value caches) are copied whole.

        So a model that fills a list or a cache it was given fills the copy.
        """
        args, kwargs = pytree.tree_map(_isolated_leaf, (self.args, dict(self.kwargs)))
        return Call(args, kwargs)


def _isolated_leaf(leaf: Any) -> Any:
    if leaf is None or isinstance(leaf, _UNCHANGING) or holdings_of(leaf).modules:
        return leaf
    try:
        return copy.deepcopy(leaf)
    except (TypeError, RuntimeError, copy.Error):  # locks, handles, tensors with a history: nothing to protect it with
        return leaf


def _is_namedtuple(sample: object) -> bool:
    """One argument, not several: ``PackedSequence`` is one."""
    return isinstance(sample, tuple) and hasattr(sample, "_fields")


_DICT_ADVICE = "To give the dict itself as the only argument, wrap it in a tuple: (sample,)."


def _sample_advice(sample: object) -> str:
    name = type(sample).__name__
    if sample is None:
        return "Pass one input: a tensor, a tuple of positional arguments, a dict of keyword arguments; () for no arguments."
    if isinstance(sample, torch.utils.data.DataLoader):
        return "Pass one batch as the model takes it: next(iter(loader)), without the labels."
    if isinstance(sample, torch.utils.data.Dataset):
        return "Pass one batch as the model takes it: torch.utils.data.default_collate([dataset[0], dataset[1]])."
    if isinstance(sample, Iterator):
        return "Pass one batch: next(sample)."
    if type(sample).__module__.partition(".")[0] in ("numpy", "pandas", "jax", "tensorflow"):
        return "Pass tensors: torch.as_tensor(sample), on the device of the model."
    if isinstance(sample, str):
        return "Tokenise it first: tokenizer(text, return_tensors='pt')."
    if isinstance(sample, nn.Module):
        return "The model comes first and the sample second."
    return f"Pass a tensor, a tuple or a dict; a single argument of type {name} goes in a tuple: (sample,)."


@dataclass(frozen=True, eq=False)
class Workload:
    """A callable and one call of it."""

    target: Callable[..., Any]
    call: Call

    @classmethod
    def of(cls, target: object, sample: object) -> Workload:
        """Check both. Raises UsageError with what to pass instead; runs nothing."""
        if inspect.isclass(target):
            raise UsageError(f"{target.__name__} is a class", advice=f"Pass an instance: {target.__name__}(...).")
        if not callable(target):
            raise UsageError(f"a {type(target).__name__} cannot be called", advice="Pass an nn.Module or a function.")
        workload = cls(target, Call.of(sample))
        _check_signature(workload)
        _check_materialised(workload.holdings)
        return workload

    @cached_property
    def holdings(self) -> Holdings:
        """Modules, tensors and generators that the target holds."""
        return holdings_of(self.target)

    @property
    def name(self) -> str:
        """Class name of a model, name of a function."""
        inner: Any = getattr(self.target, "_orig_mod", self.target)  # torch.compile's wrapper
        while isinstance(inner, functools.partial):
            inner = inner.func
        name = getattr(inner, "__qualname__", None) or type(inner).__name__
        return str(name).removesuffix(".forward").rpartition("<locals>.")[2]

    @property
    def training(self) -> bool:
        """Whether any module is in training mode."""
        return any(module.training for module in self.holdings.submodules)

    @property
    def compiled(self) -> bool:
        """Whether ``torch.compile`` already had a hand in it."""
        return hasattr(self.target, "_torchdynamo_orig_callable") or any(
            hasattr(module, "_orig_mod") or module._compiled_call_impl is not None for module in self.holdings.submodules
        )

    @cached_property
    def devices(self) -> tuple[torch.device, ...]:
        """Every device in use, the one that holds most of the parameters first, then by inputs."""
        held = _elements_by_device([*self.holdings.parameters])
        rest = _elements_by_device([*self.call.tensors, *self.holdings.buffers, *self.holdings.tensors])
        order = dict.fromkeys(device for device, _ in [*held.most_common(), *rest.most_common()])
        return tuple(order) or (torch.device("cpu"),)

    @property
    def device(self) -> torch.device:
        """Where the work is, by parameters, then by inputs."""
        return self.devices[0]

    @cached_property
    def dtypes(self) -> Mapping[str, int]:
        """Number of elements by element type, of the parameters, or of the inputs where there are none."""
        tensors = list(self.holdings.parameters) or self.call.tensors
        counts: Counter[str] = Counter()
        for tensor in tensors:
            counts[str(tensor.dtype).removeprefix("torch.")] += tensor.numel()
        return dict(counts.most_common())

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the report should know about this workload."""
        notes = []
        if len(self.devices) > 1:
            others = ", ".join(str(d) for d in self.devices[1:])
            notes.append(f"the model and its inputs are on several devices; {self.device} is tuned, not {others}")
        if any(isinstance(m, torch.jit.ScriptModule) for m in self.holdings.submodules):
            notes.append("scripted modules cannot be captured: pass the nn.Module they were made from")
        if self.compiled:
            notes.append("the model is already compiled: kernels inside compiled regions are not profiled one by one")
        return tuple(notes)

    def run(self) -> Any:
        """One call, on isolated containers; tensors are the user's own."""
        call = self.call.isolated()
        return self.target(*call.args, **call.kwargs)


def _elements_by_device(tensors: list[torch.Tensor]) -> Counter[torch.device]:
    """Zero-dimensional CPU tensors do not count: torch lets them meet any device."""
    counts: Counter[torch.device] = Counter()
    for tensor in tensors:
        if tensor.dim() > 0 or tensor.device.type != "cpu":
            counts[tensor.device] += max(1, tensor.numel())
    return counts


def _check_signature(workload: Workload) -> None:
    """Whether the arguments fit, without running anything."""
    target: Any = workload.target.forward if isinstance(workload.target, nn.Module) else workload.target
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):  # builtins and scripted code tell nothing
        return
    try:
        signature.bind(*workload.call.args, **workload.call.kwargs)
    except TypeError as error:
        advice = _DICT_ADVICE if workload.call.kwargs else "A tuple holds the positional arguments, a dict the keyword ones."
        raise UsageError(f"the sample does not fit {workload.name}{signature}: {error}", advice=advice) from error


def _check_materialised(holdings: Holdings) -> None:
    tensors = [*holdings.parameters, *holdings.buffers]
    if any(is_lazy(t) for t in tensors):
        raise UsageError("the model has lazy parameters without a shape", advice="Call it once on the sample first.")
    if any(t.device.type == "meta" for t in tensors):
        raise UsageError("the model has parameters without data (on the meta device)", advice="Load its weights first.")
