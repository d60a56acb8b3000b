"""What takes turns on the clock: eager, a native kernel, and whatever else can be called on tensors.

A side is given the inputs of one call before the clock runs and returns the call, so that only the call itself is timed. Its
results are new tensors, as eager's are.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from torch_forge.graphs.execute import callable_for
from torch_forge.graphs.place import NAN_BYTE, Placed, place
from torch_forge.graphs.subjects import PythonSubject
from torch_forge.machine.launch import Launch, meaning
from torch_forge.machine.loader import load_kernel
from torch_forge.records.kernels import Built
from torch_forge.records.problem import Graph
from torch_forge.records.tensors import contiguous

Outputs = tuple[torch.Tensor, ...]
Side = Callable[[Sequence[torch.Tensor]], Callable[[], Outputs]]
"""From the inputs of one call to the call."""


@dataclass(frozen=True, slots=True)
class Station:
    """Where a side runs."""

    graph: Graph
    device: torch.device
    stream: int
    """Address of the current CUDA stream; 0 on the CPU."""
    threads: int


@dataclass(frozen=True)
class Contender:
    """A candidate, as the worker is told of it: ``factory(station, payload)`` there makes the side."""

    factory: str
    """``package.module:function``."""
    payload: Mapping[str, Any]
    """Plain JSON."""
    config: int = 0
    shared_inputs: int = 0
    """So many leading inputs, the parameters of a module, are the same tensors in all calls of one request."""
    readable: tuple[str, ...] = ()
    """Files that its process may read, where it is confined."""
    compilers: bool = False
    """Whether it may run programs there: a kernel language compiles at the first call."""


def native(built: Built, dims: Sequence[int], config: int) -> Contender:
    """One config of a built kernel; dims: ``dims[]`` of the workload."""
    payload = {
        "library": built.library,
        "dims": list(dims),
        "config": config,
        "workspace_bytes": built.candidate.workspace_bytes,
    }
    return Contender("torch_forge.benchmarking.sides:native_side", payload, config, readable=(built.library,))


def python(built: Built) -> Contender:
    """A Python candidate that was put in place; it is called as ``Candidate.call`` says."""
    call = built.candidate.call
    assert call is not None
    return Contender(
        "torch_forge.benchmarking.sides:python_side",
        {"library": built.library, "call": dict(call)},
        shared_inputs=len(call["parameters"]),
        readable=(built.library,),
        compilers=True,
    )


def made(station: Station, factory: str, payload: Mapping[str, Any]) -> Side:
    """The side of a contender; its code is loaded now."""
    module, _, function = factory.partition(":")
    side: Side = getattr(importlib.import_module(module), function)(station, payload)
    return side


def eager_contender(station: Station, payload: Mapping[str, Any]) -> Side:
    """Eager as a contender against itself: what it gains is noise."""
    del payload
    return eager_side(station.graph)


def eager_side(graph: Graph) -> Side:
    """The graph with torch's own operations."""
    function = callable_for(graph)
    return lambda inputs: partial(function, *inputs)


def native_side(station: Station, payload: Mapping[str, Any]) -> Side:
    """A kernel under the entry-point contract; its outputs are allocated in every call.

    A call raises RuntimeError if ``forge_launch`` does not return 0.
    """
    address, config = load_kernel(payload["library"]), payload["config"]
    scratch = _workspace(payload["workspace_bytes"], station.device)
    specs, outputs = station.graph.inputs, station.graph.output_specs
    kinds = [(s.shape, s.stride, getattr(torch, s.dtype)) for s in outputs]
    device, allocate = station.device, torch.empty_strided

    def bind(inputs: Sequence[torch.Tensor]) -> Callable[[], Outputs]:
        launch = Launch(
            address,
            [(s, t.data_ptr()) for s, t in zip(specs, inputs, strict=True)],
            outputs,
            payload["dims"],
            config=config,
            threads=station.threads,
            workspace=scratch.tensor.data_ptr() if scratch is not None else 0,
            stream=station.stream,
        )

        def call() -> Outputs:
            results = tuple(allocate(shape, stride, dtype=dtype, device=device) for shape, stride, dtype in kinds)
            code = launch(results)
            if code != 0:
                raise RuntimeError(f"config {config}: forge_launch: {meaning(code)}")
            return results

        return call

    return bind


def python_side(station: Station, payload: Mapping[str, Any]) -> Side:
    """A module or function of a file; its results are what it returns."""
    subject = PythonSubject(payload["library"], payload["call"], station.device)

    def bind(inputs: Sequence[torch.Tensor]) -> Callable[[], Outputs]:
        subject.load_parameters(inputs)
        return partial(subject.results, inputs)

    return bind


def _workspace(nbytes: int, device: torch.device) -> Placed | None:
    return place(contiguous((nbytes,), "uint8"), device=device, byte=NAN_BYTE) if nbytes else None
