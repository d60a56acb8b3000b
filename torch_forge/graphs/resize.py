"""The same problem at other sizes: what hidden test shapes and shape-generic kernels are checked on."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from torch_forge.errors import CaptureError
from torch_forge.graphs.capture import graph_from_fx, trace_specs
from torch_forge.graphs.execute import callable_for
from torch_forge.records.problem import SIZE_OPS, Graph, Node, Problem
from torch_forge.records.tensors import TensorSpec


def resize(problem: Problem, sizes: Mapping[int, int]) -> Problem | None:
    """The problem with every input size ``old`` replaced by ``sizes[old]``, in shapes and in size arguments.

    Strides keep their order and their padding-free or broadcast character. None if the graph does not
    make sense at these sizes (a reshape that does not fit).
    """
    inputs = tuple(_resized(s, sizes) for s in problem.graph.inputs)
    nodes = tuple(
        Node(n.op, _sized(n.args, sizes) if n.op in SIZE_OPS else n.args, n.kwargs, n.outputs) for n in problem.graph.nodes
    )
    draft = Graph(inputs, nodes, problem.graph.outputs)
    try:
        with _quiet():
            gm = trace_specs(callable_for(draft), inputs)
        graph = graph_from_fx(gm)
    except (CaptureError, RuntimeError, torch.fx.proxy.TraceError):
        return None
    return Problem(problem.name, graph, problem.policy)


@contextmanager
def _quiet() -> Iterator[None]:
    """Sizes that do not fit are expected here; torch would log each of them as an error."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


def _sized(value: Any, sizes: Mapping[int, int]) -> Any:
    if isinstance(value, tuple):
        return tuple(_sized(v, sizes) for v in value)
    return sizes.get(value, value) if type(value) is int else value


def _resized(spec: TensorSpec, sizes: Mapping[int, int]) -> TensorSpec:
    shape = tuple(sizes.get(n, n) if n > 1 else n for n in spec.shape)
    order = sorted(range(len(shape)), key=lambda d: (spec.stride[d], spec.shape[d]))
    stride, step = list(spec.stride), 1
    for d in order:
        if spec.stride[d] == 0:
            continue
        stride[d] = step
        step *= max(shape[d], 1)
    return TensorSpec(shape, tuple(stride), spec.dtype)
