"""Run a ``Graph`` record with torch's own operations: the eager baseline, and the float64 oracle.

The graph is turned into one straight-line Python function, so that the baseline pays for the operations and
not for an interpreter.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from torch_forge.errors import RecordError
from torch_forge.graphs.kinds import VIEWS
from torch_forge.records.problem import DTYPE, LAYOUT, REF, Graph, Node
from torch_forge.records.tensors import DTYPES

_CREATES = frozenset(
    f"aten.{n}" for n in ("full.default", "arange.default", "arange.start", "arange.start_step", "scalar_tensor.default",
                          "zeros.default", "ones.default", "empty.memory_format", "eye.default")
)  # fmt: skip
"""Operations that make a tensor from nothing and so must be told the device."""

After = Callable[[torch.Tensor, str], torch.Tensor]


def operation(name: str) -> torch._ops.OpOverload:
    """The torch operation behind ``aten.add.Tensor``. Raises RecordError for one this torch does not have."""
    try:
        namespace, packet, overload = name.split(".")
        found: torch._ops.OpOverload = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    except (ValueError, AttributeError) as error:
        raise RecordError(f"this torch has no operation {name}") from error
    return found


def callable_for(graph: Graph) -> Callable[..., tuple[torch.Tensor, ...]]:
    """A function of the graph's inputs that returns its outputs, computed by eager torch on the inputs' device."""
    return _compile(graph, upcast=False)


def upcast_callable(graph: Graph, after: After | None = None) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The same function in float64: floating inputs are converted, and so is every float type named in the graph.

    after: what becomes of each float result of an operation that computes (views do not), given eager's type of it.
    """
    return _compile(graph, upcast=True, after=after)


def _compile(graph: Graph, *, upcast: bool, after: After | None = None) -> Callable[..., tuple[torch.Tensor, ...]]:
    scope: dict[str, Any] = {"torch": torch}
    if after is not None:
        scope["each"] = functools.partial(_each, after)
    arguments = [f"i{k}" for k in range(len(graph.inputs))]
    lines = [f"def run({', '.join(arguments)}):"]
    if any(n.op in _CREATES for n in graph.nodes):
        lines.append(f"    device = {arguments[0]}.device" if arguments else "    device = torch.device('cpu')")
    if upcast:
        lines += [
            f"    {a} = {a}.double()"
            for a, s in zip(arguments, graph.inputs, strict=True)
            if DTYPES[s.dtype].kind == "float"
        ]
    for position, node in enumerate(graph.nodes):
        scope[f"op{position}"] = operation(node.op)
        lines.append(f"    v{position} = op{position}({_arguments(node, upcast)})")
        if after is not None and node.op not in VIEWS:
            lines.append(f"    v{position} = each(v{position}, {[o.dtype for o in node.outputs]!r})")
    results = "".join(f"{_reference(ref)}, " for ref in graph.outputs)
    lines.append(f"    return ({results})")
    exec(compile("\n".join(lines), "<torch_forge graph>", "exec"), scope)  # noqa: S102 (text made above from a checked record)
    run: Callable[..., tuple[torch.Tensor, ...]] = scope["run"]
    return run


def _each(after: After, results: Any, dtypes: list[str]) -> Any:
    """``after`` on one result or on each of several, floats only."""
    if not isinstance(results, torch.Tensor):
        return [_each(after, r, [d]) for r, d in zip(results, dtypes, strict=True)]
    return after(results, dtypes[0]) if results.is_floating_point() and DTYPES[dtypes[0]].kind == "float" else results


def _arguments(node: Node, upcast: bool) -> str:
    parts = [_literal(a, upcast) for a in node.args]
    parts += [f"{k}={_literal(v, upcast)}" for k, v in node.kwargs]
    if node.op in _CREATES:
        parts.append("device=device")
        if not any(k == "dtype" for k, _ in node.kwargs):
            parts.append(f"dtype={_literal(DTYPE + node.outputs[0].dtype, upcast)}")
    return ", ".join(parts)


def _reference(ref: str) -> str:
    name, _, index = ref.removeprefix(REF).partition(".")
    return f"{name}[{index}]" if index else name


def _literal(value: Any, upcast: bool) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_literal(v, upcast) for v in value) + "]"
    if isinstance(value, str) and value.startswith(REF):
        return _reference(value)
    if isinstance(value, str) and value.startswith(DTYPE):
        name = value.removeprefix(DTYPE)
        return "torch.float64" if upcast and DTYPES[name].kind == "float" else f"torch.{name}"
    if isinstance(value, str) and value.startswith(LAYOUT):
        return f"torch.{value.removeprefix(LAYOUT)}"
    if isinstance(value, float):
        return f"float({str(value)!r})"
    return repr(value)
