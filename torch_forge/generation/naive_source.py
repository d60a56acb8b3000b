"""A file to start from, for any problem: typed pointers, sizes, launch and error handling; plain, never fast.

For elementwise graphs over equal contiguous float32 or float64 tensors the loop computes the problem, so that
whoever reads the interface sees one right kernel. Everything else gets the frame and FORGE_UNSUPPORTED.
"""

from __future__ import annotations

import math

from torch_forge.records.problem import REF, Graph, Node, Problem
from torch_forge.records.tensors import TensorSpec

_CTYPES = {
    "float64": "double", "float32": "float", "int64": "int64_t", "int32": "int32_t", "int16": "int16_t",
    "int8": "int8_t", "uint8": "uint8_t", "bool": "bool",
}  # fmt: skip
_CUDA_CTYPES = {**_CTYPES, "float16": "__half", "bfloat16": "__nv_bfloat16"}
# C++17 has no 16-bit float types; forge_math.h has storage types and conversions.
_CPU_CTYPES = {**_CTYPES, "float16": "forge_f16", "bfloat16": "forge_bf16"}

_ELEMENTWISE: dict[str, str] = {
    "aten.add.Tensor": "{0} + {1}", "aten.sub.Tensor": "{0} - {1}", "aten.mul.Tensor": "{0} * {1}",
    "aten.div.Tensor": "{0} / {1}", "aten.neg.default": "-{0}", "aten.abs.default": "fabs({0})",
    "aten.exp.default": "exp({0})", "aten.sqrt.default": "sqrt({0})", "aten.tanh.default": "tanh({0})",
    "aten.sigmoid.default": "{one} / ({one} + exp(-{0}))", "aten.relu.default": "{0} <= 0 ? 0 : {0}",
}  # fmt: skip


def example_source(problem: Problem, backend: str) -> str:
    """A whole source file for ``problem`` that compiles for ``backend`` (``cuda`` or ``cpu``)."""
    body = _loop_body(problem.graph)
    return _cuda(problem.graph, body) if backend == "cuda" else _cpu(problem.graph, body)


def ctype(dtype: str, backend: str) -> str:
    """The C++ type that holds one element."""
    return (_CUDA_CTYPES if backend == "cuda" else _CPU_CTYPES)[dtype]


def _loop_body(graph: Graph) -> list[str] | None:
    """Statements for element ``i``, or None where the graph is not of the simple kind."""
    specs = [*graph.inputs, *(s for n in graph.nodes for s in n.outputs)]
    if not specs or any(s != specs[0] for s in specs) or specs[0].dtype not in ("float32", "float64"):
        return None
    if not specs[0].is_contiguous or not all(_simple(n) for n in graph.nodes):
        return None
    t = _CTYPES[specs[0].dtype]
    lines = [f"const {t} v{k} = {_expression(n, t)};" for k, n in enumerate(graph.nodes)]
    return lines + [f"out{k}[i] = {_operand(ref, t)};" for k, ref in enumerate(graph.outputs)]


def _simple(node: Node) -> bool:
    return node.op in _ELEMENTWISE and not node.kwargs and all(_value_or_number(a) for a in node.args)


def _value_or_number(arg: object) -> bool:
    if isinstance(arg, str):
        return arg.startswith(REF)
    return isinstance(arg, (int, float)) and not isinstance(arg, bool) and math.isfinite(arg)


def _expression(node: Node, t: str) -> str:
    return _ELEMENTWISE[node.op].format(*(_operand(a, t) for a in node.args), one=f"{t}(1)")


def _operand(value: object, t: str) -> str:
    if isinstance(value, str):
        name = value[len(REF) :].partition(".")[0]
        return f"in{name[1:]}[i]" if name.startswith("i") else name
    return f"{t}({float(value)!r})" if isinstance(value, (int, float)) else str(value)


def _pointers(graph: Graph, backend: str) -> list[str]:
    lines = []
    for role, specs in (("in", graph.inputs), ("out", graph.output_specs)):
        for k, spec in enumerate(specs):
            t = ctype(spec.dtype, backend)
            qualifier = "const " if role == "in" else ""
            lines.append(f"{qualifier}{t}* {role}{k} = static_cast<{qualifier}{t}*>({role}[{k}].data);{_shape_note(spec)}")
    return lines


def _shape_note(spec: TensorSpec) -> str:
    return f"  // {spec.dtype} {list(spec.shape)} strides {list(spec.stride)}"


_SIGNATURE = """extern "C" int forge_launch(const ForgeTensor* in, const ForgeTensor* out, const int64_t* dims,
                            int64_t config, int64_t threads, void* workspace, void* stream) {"""


def _cpu(graph: Graph, body: list[str] | None) -> str:
    count = graph.output_specs[0].numel if graph.outputs else 0
    if body is None:
        inner = ["(void)n;", "return FORGE_UNSUPPORTED;  // compute the outputs here, then return FORGE_OK"]
    else:
        inner = ["for (int64_t i = 0; i < n; ++i) {", *(f"  {line}" for line in body), "}", "return FORGE_OK;"]
    unused = ["(void)dims; (void)threads; (void)workspace; (void)stream;"]
    if body is None:
        unused += [" ".join(f"(void){name};" for name in _names(graph))]
    size = f"const int64_t n = {count};"
    lines = ["if (config != 0) return FORGE_BAD_CONFIG;", *_pointers(graph, "cpu"), size, *unused, *inner]
    names = "using std::exp; using std::fabs; using std::sqrt; using std::tanh;"
    head = ['#include "forge.h"', '#include "forge_math.h"', "#include <cmath>", "", names, ""]
    return "\n".join([*head, _SIGNATURE, *(f"  {line}" for line in lines), "}", ""])


def _names(graph: Graph) -> list[str]:
    return [f"in{k}" for k in range(len(graph.inputs))] + [f"out{k}" for k in range(len(graph.outputs))]


def _cuda(graph: Graph, body: list[str] | None) -> str:
    count = graph.output_specs[0].numel if graph.outputs else 0
    typed = [(f"in{k}", f"const {ctype(s.dtype, 'cuda')}* __restrict__ in{k}") for k, s in enumerate(graph.inputs)]
    typed += [(f"out{k}", f"{ctype(s.dtype, 'cuda')}* __restrict__ out{k}") for k, s in enumerate(graph.output_specs)]
    inside = body if body is not None else [f"// compute element i from {', '.join(_names(graph))}"]
    kernel = [
        f"__global__ void kernel({', '.join(t for _, t in typed)}, int64_t n) {{",
        "  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;",
        "  if (i >= n) return;",
        *(f"  {line}" for line in inside),
        "}",
    ]
    arguments = ", ".join([name for name, _ in typed] + ["n"])
    launch = [
        "if (config != 0) return FORGE_BAD_CONFIG;",
        *_pointers(graph, "cuda"),
        f"const int64_t n = {count};",
        "const unsigned blocks = static_cast<unsigned>((n + 255) / 256);",
        "(void)dims; (void)threads; (void)workspace;",
        *([] if body is not None else ["return FORGE_UNSUPPORTED;  // remove once the kernel computes the outputs"]),
        f"if (blocks > 0) kernel<<<blocks, 256, 0, static_cast<cudaStream_t>(stream)>>>({arguments});",
        "const cudaError_t status = cudaGetLastError();",
        "return status == cudaSuccess ? FORGE_OK : FORGE_CUDA_ERROR + static_cast<int>(status);",
    ]
    head = ['#include "forge.h"', "#include <cuda_bf16.h>", "#include <cuda_fp16.h>", "#include <cuda_runtime.h>", ""]
    return "\n".join([*head, *kernel, "", _SIGNATURE, *(f"  {line}" for line in launch), "}", ""])
