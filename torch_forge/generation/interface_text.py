"""The entry-point contract for one problem, as text: for a person with a kernel to judge and for an LLM's prompt.

Contract, operands, computation and a file to start from, all filled in for the problem's own tensors. The file
compiles as it stands. Where the problem is a simple elementwise one it is already right, else it returns
FORGE_UNSUPPORTED at the place where the computation belongs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch_forge.generation.naive_source import example_source
from torch_forge.records.problem import DTYPE, REF, Graph, Problem
from torch_forge.records.tensors import DTYPES, TensorSpec


def interface(problem: Problem, backend: str) -> str:
    """Everything the author of a kernel for ``problem`` must know; ``backend`` is ``cuda`` or ``cpu``."""
    language = "CUDA C++ (.cu, nvcc)" if backend == "cuda" else "C++17 (.cpp, g++)"
    return "\n".join(
        [
            f"Kernel for problem {problem.name!r}, {language}. Numerics policy: {problem.policy.value}.",
            "",
            "Operands:",
            *operand_lines(problem.graph),
            "",
            "What it computes (i<k> is in[k].data, the returned values are out[0], out[1] ...):",
            *graph_lines(problem.graph),
            "",
            "The contract, forge.h:",
            header_text().rstrip(),
            "",
            "A file to start from:",
            example_source(problem, backend).rstrip(),
            "",
        ]
    )


@lru_cache(maxsize=1)
def header_text() -> str:
    """The text of ``forge.h``."""
    return (Path(__file__).parent.parent / "include" / "forge.h").read_text(encoding="utf-8")


def spec_text(spec: TensorSpec) -> str:
    """``bfloat16[16384, 4096]``, with strides where they are not row-major."""
    shape = ", ".join(str(n) for n in spec.shape)
    strides = "" if spec.is_contiguous else f" strides {list(spec.stride)}"
    return f"{spec.dtype}[{shape}]{strides}"


def operand_lines(graph: Graph) -> list[str]:
    """One line per operand and one for ``dims``."""
    lines = [f"  in[{k}]: {spec_text(s)}, {_bytes(s)}" for k, s in enumerate(graph.inputs)]
    lines += [f"  out[{k}]: {spec_text(s)}, {_bytes(s)}, not initialised" for k, s in enumerate(graph.output_specs)]
    sizes = [n for s in graph.inputs for n in s.shape]
    return [*lines, f"  dims[0..{len(sizes) - 1}]: {sizes} (every input size in order)" if sizes else "  dims: empty"]


def _bytes(spec: TensorSpec) -> str:
    return f"{spec.numel} elements of {DTYPES[spec.dtype].nbytes} bytes"


def graph_lines(graph: Graph) -> list[str]:
    """The graph as ATen pseudo-Python, a line per node, each with its result types."""
    args = ", ".join(f"i{k}" for k in range(len(graph.inputs)))
    lines = [f"  def problem({args}):"]
    for k, node in enumerate(graph.nodes):
        call = ", ".join([_text(a) for a in node.args] + [f"{name}={_text(v)}" for name, v in node.kwargs])
        results = ", ".join(spec_text(s) for s in node.outputs)
        lines.append(f"      v{k} = {node.op}({call})  # {results}")
    outputs = ", ".join(_text(ref) for ref in graph.outputs)
    return [*lines, f"      return {outputs}"]


def _text(value: Any) -> str:
    """An argument as Python would write it: ``%v3.1`` is ``v3[1]``, ``@float32`` is ``torch.float32``."""
    if isinstance(value, str) and value.startswith(REF):
        name, _, index = value[len(REF) :].partition(".")
        return f"{name}[{index}]" if index else name
    if isinstance(value, str) and value.startswith(DTYPE):
        return f"torch.{value[len(DTYPE) :]}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(_text(v) for v in value)}]"
    return repr(value)
