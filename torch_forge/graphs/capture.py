"""Torch graphs and functions to ``Graph`` records.

A function is traced on fake tensors, so nothing is computed and no device memory is used; what comes out is
the ATen calls that eager would make, composite operations such as ``layer_norm`` kept whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from torch_forge.errors import CaptureError
from torch_forge.records.problem import DTYPE, LAYOUT, Graph, Node, Policy, Problem
from torch_forge.records.tensors import DTYPES, TensorSpec


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """Shape, strides and element type. Raises CaptureError for a tensor that kernels cannot read."""
    name = dtype_name(tensor.dtype)
    if name not in DTYPES:
        raise CaptureError(f"no kernel reads {tensor.dtype} tensors")
    if tensor.layout != torch.strided:
        raise CaptureError(f"no kernel reads {tensor.layout} tensors")
    if not all(isinstance(n, int) for n in (*tensor.shape, *tensor.stride())):
        raise CaptureError("symbolic sizes: the graph was traced with dynamic shapes")
    return TensorSpec(tuple(tensor.shape), tuple(tensor.stride()), name)


def fake_inputs(specs: Sequence[TensorSpec], device: str = "cpu") -> tuple[FakeTensorMode, list[torch.Tensor]]:
    """Tensors of these specs without data, and the mode in which they live."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        return mode, [torch.empty_strided(s.shape, s.stride, dtype=getattr(torch, s.dtype), device=device) for s in specs]


def trace_specs(
    fn: Callable[..., Any],
    specs: Sequence[TensorSpec],
    *,
    device: str = "cpu",
    decompositions: Mapping[Any, Any] | None = None,
) -> torch.fx.GraphModule:
    """The ATen graph of ``fn`` on fake tensors of these specs. Raises CaptureError if it cannot be traced."""
    mode, inputs = fake_inputs(specs, device)
    try:
        with mode, torch.no_grad():
            return make_fx(
                lambda *tensors: fn(*tensors),  # noqa: PLW0108 (make_fx refuses arguments left at their defaults)
                decomposition_table=dict(decompositions or {}),
                tracing_mode="real",
            )(*inputs)
    except Exception as error:  # tracing runs arbitrary user code: any failure means "not capturable"
        raise CaptureError(
            f"cannot trace {getattr(fn, '__name__', 'the function')}: {type(error).__name__}: {error}"
        ) from error


def graph_from_fx(gm: torch.fx.GraphModule) -> Graph:
    """The record of an ATen fx graph. Raises CaptureError on what a kernel cannot stand for.

    Placeholders must be tensors; attributes, control flow, symbolic sizes and effects (random numbers,
    in-place writes) are refused.
    """
    gm.graph.eliminate_dead_code()
    names: dict[torch.fx.Node, str] = {}
    inputs: list[TensorSpec] = []
    nodes: list[Node] = []
    outputs: tuple[str, ...] = ()
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            value = node.meta.get("val")
            if not isinstance(value, torch.Tensor):
                raise CaptureError(f"input {node.name} is not a tensor")
            names[node] = f"%i{len(inputs)}"
            inputs.append(spec_of(value))
        elif node.op == "output":
            flat = node.args[0] if isinstance(node.args[0], (tuple, list)) else (node.args[0],)
            if not all(isinstance(o, torch.fx.Node) for o in flat):
                raise CaptureError("an output is not a tensor")
            outputs = tuple(names[o] for o in flat)
        elif node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem":
            names[node] = f"{names[node.args[0]]}.{node.args[1]}"
        elif node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            names[node] = f"%v{len(nodes)}"
            nodes.append(_node(node, names))
        else:
            raise CaptureError(f"{node.op} {node.target} is not an ATen call")
    return Graph(tuple(inputs), tuple(nodes), outputs)


def _node(node: torch.fx.Node, names: Mapping[torch.fx.Node, str]) -> Node:
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    if target._schema.is_mutable:
        raise CaptureError(f"{target} writes to its argument")
    if torch.Tag.nondeterministic_seeded in target.tags and not _without_dropout(node, target):
        raise CaptureError(f"{target} draws random numbers")
    value = node.meta.get("val")
    results = value if isinstance(value, (tuple, list)) else (value,)
    specs = tuple(spec_of(v) for v in results if isinstance(v, torch.Tensor))
    if len(specs) != len(results):
        raise CaptureError(f"{target} does not give tensors only")
    kwargs = tuple(
        (k, _argument(v, names)) for k, v in sorted(node.kwargs.items()) if k not in ("device", "layout", "pin_memory")
    )
    return Node(str(target), tuple(_argument(a, names) for a in node.args), kwargs, specs)


def _without_dropout(node: torch.fx.Node, target: torch._ops.OpOverload) -> bool:
    """Whether an operation that may draw random numbers draws none here: attention with a dropout probability of 0."""
    for position, argument in enumerate(target._schema.arguments):
        if argument.name == "dropout_p":
            named = node.kwargs.get("dropout_p", argument.default_value)
            return bool((node.args[position] if position < len(node.args) else named) == 0.0)
    return False


def _argument(value: Any, names: Mapping[torch.fx.Node, str]) -> Any:
    if isinstance(value, torch.fx.Node):
        return names[value]
    if isinstance(value, (tuple, list)):
        return tuple(_argument(v, names) for v in value)
    if isinstance(value, torch.dtype):
        return f"{DTYPE}{dtype_name(value)}"
    if isinstance(value, torch.memory_format):
        return f"{LAYOUT}{str(value).removeprefix('torch.')}"
    if isinstance(value, (torch.device, torch.layout)):
        return None
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise CaptureError(f"argument {value!r} cannot be recorded")


def problem_of(
    fn: Callable[..., Any], tensors: Sequence[torch.Tensor], *, policy: Policy = Policy.EAGER_EQUIVALENT
) -> Problem:
    """The problem that a function of tensors poses at these tensors' shapes and layouts.

    ``fn`` takes the tensors positionally and returns a tensor or a tuple of tensors. Raises CaptureError.
    """
    device = tensors[0].device.type if tensors else "cpu"
    gm = trace_specs(fn, [spec_of(t) for t in tensors], device=device)
    graph = graph_from_fx(gm)
    return Problem(name_of(graph), graph, policy)


_SHORT = {
    "native_layer_norm": "layer_norm", "_softmax": "softmax", "_log_softmax": "log_softmax",
    "native_group_norm": "group_norm",
    "_native_batch_norm_legit_no_training": "batch_norm", "native_batch_norm": "batch_norm",
    "linalg_vector_norm": "norm",
}  # fmt: skip
_SILENT = frozenset(
    [
        "view",
        "_unsafe_view",
        "reshape",
        "expand",
        "permute",
        "t",
        "transpose",
        "unsqueeze",
        "squeeze",
        "slice",
        "select",
        "split",
        "_to_copy",
        "clone",
        "alias",
        "detach",
        "full",
        "full_like",
        "arange",
        "scalar_tensor",
        "unbind",
        "split_with_sizes",
        "zeros_like",
        "ones_like",
    ]
)


def name_of(graph: Graph) -> str:
    """A short readable name from the operations: ``pow_mean_rsqrt_mul``, at most four of them."""
    bare = [n.op.split(".")[1] for n in graph.nodes]
    names = [_SHORT.get(b, b) for b in bare if b not in _SILENT]
    distinct = list(dict.fromkeys(names))
    return "_".join(distinct[:4]) or "copy"
