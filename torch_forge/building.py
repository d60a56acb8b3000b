"""Fill the cache ahead of time: models and shapes in, winners out.

A *target* is ``package.module:name`` or ``path/to/file.py:name``; ``name`` is a function without arguments that returns the
model (or a
tuple of model and sample), an ``nn.Module`` class, or a model. Without a name, the file is read in the form that KernelBench
made
common: ``Model``, ``get_init_inputs()``, ``get_inputs()``. A *shape list* is a JSON file: a list of samples, each a list of
positional arguments
or an object of keyword arguments; an argument is ``{"shape": [8, 128], "dtype": "int64", "high": 32000}`` or a plain value.

Resuming needs no state of its own: every decision is in the cache the moment it is made, so a run that was killed goes on
where it was when it is started again.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torch_forge.errors import UsageError
from torch_forge.profiling.workload import Call

_FORM = "Write it as package.module:name or path/to/file.py:name."


@dataclass(frozen=True)
class Job:
    """One model at one sample."""

    target: str
    sample: int
    """Position in the shape list."""
    model: torch.nn.Module
    call: Call


def jobs(targets: Sequence[str], shapes: Path | None, device: str, *, seed: int = 0) -> Iterator[Job]:
    """Every target with every sample. Raises UsageError, before anything is tuned, for what cannot be loaded."""
    specs = read_shapes(shapes) if shapes is not None else None
    for target in targets:
        model, own = load_target(target)
        model = model.to(device).eval()
        samples = [call_of(s, device, seed) for s in specs] if specs is not None else [] if own is None else [own]
        if not samples:
            raise UsageError(
                f"{target} has no sample", advice="Give --shapes FILE, or a get_inputs() function beside the model."
            )
        for position, call in enumerate(samples):
            yield Job(target, position, model, _moved(call, device))


def load_target(target: str) -> tuple[torch.nn.Module, Call | None]:
    """The model behind a target and the sample that comes with it, if one does. Raises UsageError."""
    place, _, name = target.partition(":")
    module = _module(place)
    if not name:
        return _kernelbench(module, target)
    found = getattr(module, name, None)
    if found is None:
        raise UsageError(f"{place} has no {name!r}", advice=_FORM)
    made = found() if callable(found) and not isinstance(found, torch.nn.Module) else found
    model, sample = made if isinstance(made, tuple) else (made, None)
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"{target} gave a {type(model).__name__}, not a torch.nn.Module")
    if sample is None and hasattr(module, "get_inputs"):
        sample = tuple(module.get_inputs())
    return model, None if sample is None else Call.of(sample)


@dataclass(frozen=True)
class Reference:
    """What a kernel is judged against: a function of tensors with a sample, and where they come from in a model."""

    function: Callable[..., Any]
    call: Call
    parameters: tuple[str, ...] = ()
    """Names, in the model, of the leading arguments."""
    init: tuple[Any, ...] = ()
    """Arguments that made the model."""

    @classmethod
    def of_module(cls, model: torch.nn.Module, call: Call, init: Sequence[Any] = ()) -> Reference:
        """A module as a function: its parameters and buffers become arguments in front of its inputs."""
        tensors = dict(model.named_parameters()) | dict(model.named_buffers())
        names = tuple(tensors)

        def function(*args: Any, **kwargs: Any) -> Any:
            own = dict(zip(names, args, strict=False))
            return torch.func.functional_call(model, own, args[len(names) :], kwargs)

        moved = Call((*(tensors[n].detach() for n in names), *call.args), call.kwargs)
        return cls(function, moved, names, tuple(init))


def load_reference(target: str, device: str) -> Reference:
    """From ``file.py:function`` (with a ``get_inputs()``) or a file in the ``Model`` form. Raises UsageError."""
    place, _, name = target.partition(":")
    module = _module(place)
    if name:
        fn = getattr(module, name, None)
        if not callable(fn) or not hasattr(module, "get_inputs"):
            raise UsageError(f"{place} needs a function {name!r} and a get_inputs()", advice=_FORM)
        return Reference(fn, _moved(Call.of(tuple(module.get_inputs())), device))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, call = _kernelbench(module, target)
    initial = module.get_init_inputs() if hasattr(module, "get_init_inputs") else []
    return Reference.of_module(model.to(device).eval(), _moved(call, device), initial)


def _kernelbench(module: Any, target: str) -> tuple[torch.nn.Module, Call]:
    missing = [n for n in ("Model", "get_inputs") if not hasattr(module, n)]
    if missing:
        raise UsageError(f"{target} defines no {' and no '.join(missing)}", advice=_FORM)
    initial = module.get_init_inputs() if hasattr(module, "get_init_inputs") else []
    return module.Model(*initial), Call.of(tuple(module.get_inputs()))


def _module(place: str) -> Any:
    path = Path(place)
    if path.suffix == ".py":
        if not path.is_file():
            raise UsageError(f"there is no file {place}", advice=_FORM)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        raise UsageError(f"cannot import {place}: {error}", advice=_FORM) from error


def read_shapes(path: Path) -> list[Any]:
    """The samples of a shape list. Raises UsageError if the file is not one."""
    try:
        specs = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the shape list {path}: {error}") from error
    if not isinstance(specs, list) or not all(isinstance(s, (list, dict)) for s in specs):
        raise UsageError(
            f"{path} is not a list of samples", advice='For example: [[{"shape": [8, 128], "dtype": "float32"}]].'
        )
    return specs


def call_of(spec: Any, device: str, seed: int) -> Call:
    """The call that one entry of a shape list describes."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(spec, dict) and "shape" not in spec:
        return Call((), {k: _argument(v, device, generator) for k, v in spec.items()})
    return Call(tuple(_argument(v, device, generator) for v in spec))


def _argument(value: Any, device: str, generator: torch.Generator) -> Any:
    if not isinstance(value, dict):
        return value
    unknown = set(value) - {"shape", "dtype", "high"}
    dtype = getattr(torch, str(value.get("dtype", "float32")), None)
    if "shape" not in value or unknown or not isinstance(dtype, torch.dtype):
        raise UsageError(
            f"cannot read the argument {value}", advice='For example: {"shape": [8, 128], "dtype": "int64", "high": 32000}.'
        )
    shape = tuple(value["shape"])
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool().to(device)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype).to(device)
    return torch.randint(0, int(value.get("high", 2)), shape, generator=generator, dtype=dtype).to(device)


def _moved(call: Call, device: str) -> Call:
    from torch.utils import _pytree as pytree

    args, kwargs = pytree.tree_map(
        lambda x: x.to(device) if isinstance(x, torch.Tensor) else x, (call.args, dict(call.kwargs))
    )
    return Call(args, kwargs)
