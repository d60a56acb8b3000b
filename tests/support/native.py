"""Hand-written CPU kernels and the plain g++ command that builds them, for tests of what happens after a build."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from torch_forge.dispatch.glue import INCLUDE_DIR, glue_source
from torch_forge.dispatch.registry import OpHandle, load_op
from torch_forge.records.kernels import Binding
from torch_forge.records.tensors import TensorSpec

RELU = """
#include "forge.h"
// dims: number of elements of a dense tensor. Config 1 stands for a vector kernel: it refuses an address off 16 bytes.
extern "C" int forge_launch(const ForgeTensor* in, const ForgeTensor* out,
                            const int64_t* dims, int64_t config, int64_t threads, void* workspace, void* stream) {
  if (config > 1 || threads < 1 || stream) return FORGE_BAD_CONFIG;
  const float* x = (const float*)in[0].data;
  float* y = (float*)out[0].data;
  if (config == 1 && (((uintptr_t)x | (uintptr_t)y) & 15)) return FORGE_UNSUPPORTED;
  for (int64_t i = 0; i < dims[0]; ++i) y[i] = x[i] < 0 ? 0 : x[i];
  return FORGE_OK;
}
"""

ADD_MUL = """
#include "forge.h"
// Two outputs; sums in the workspace first, which must be 256-byte aligned.
extern "C" int forge_launch(const ForgeTensor* in, const ForgeTensor* out,
                            const int64_t* dims, int64_t, int64_t, void* workspace, void*) {
  if (!workspace || ((uintptr_t)workspace & 255)) return FORGE_UNSUPPORTED;
  const double *a = (const double*)in[0].data, *b = (const double*)in[1].data;
  double *sum = (double*)out[0].data, *product = (double*)out[1].data, *scratch = (double*)workspace;
  for (int64_t i = 0; i < dims[0]; ++i) scratch[i] = a[i] + b[i];
  for (int64_t i = 0; i < dims[0]; ++i) { sum[i] = scratch[i]; product[i] = a[i] * b[i]; }
  return FORGE_OK;
}
"""

STRIDED_COPY = """
#include "forge.h"
// Any layout to a row-major output, two dimensions, addresses from the tensors' own sizes and strides.
extern "C" int forge_launch(const ForgeTensor* in, const ForgeTensor* out,
                            const int64_t*, int64_t, int64_t, void*, void*) {
  const float* x = (const float*)in[0].data;
  float* y = (float*)out[0].data;
  for (int64_t r = 0; r < in[0].sizes[0]; ++r)
    for (int64_t c = 0; c < in[0].sizes[1]; ++c)
      y[r * out[0].strides[0] + c * out[0].strides[1]] = x[r * in[0].strides[0] + c * in[0].strides[1]];
  return FORGE_OK;
}
"""

GATHER = """
#include "forge.h"
// out[i] = table[index[i]]; dims: table length, index length.
extern "C" int forge_launch(const ForgeTensor* in, const ForgeTensor* out,
                            const int64_t* dims, int64_t, int64_t, void*, void*) {
  const int64_t* index = (const int64_t*)in[1].data;
  for (int64_t i = 0; i < dims[1]; ++i) {
    if (index[i] < 0 || index[i] >= dims[0]) return FORGE_INDEX_ERROR;
    ((float*)out[0].data)[i] = ((const float*)in[0].data)[index[i]];
  }
  return FORGE_OK;
}
"""


def build(source: str, path: Path) -> Path:
    """Compile a kernel or a glue to a shared library with plain g++ against this torch."""
    text = path.with_suffix(".cpp")
    text.write_text(source)
    root = Path(torch.__file__).parent
    command = [os.environ.get("CXX", "g++"), "-O1", "-shared", "-fPIC", "-std=c++20", "-Wall", f"-I{INCLUDE_DIR}"]
    command += [f"-I{root / 'include'}", str(text), "-o", str(path)]
    if "forge_glue.h" in source:
        command += [f"-L{root / 'lib'}", "-ltorch_cpu", f"-Wl,-rpath,{root / 'lib'}"]
    subprocess.run(command, check=True, timeout=120)
    return path


def load(folder: Path, name: str, digest: str, counts: tuple[int, int], source: str) -> OpHandle:
    """Build glue and kernel in ``folder`` and load them as one operator."""
    glue = build(glue_source(name, digest, *counts, "cpu"), folder / f"{name}_glue.so")
    kernel = build(source, folder / f"{name}_kernel.so")
    return load_op(name, digest, *counts, "cpu", glue, kernel)


def spec_of(tensor: Tensor) -> TensorSpec:
    return TensorSpec(tuple(tensor.shape), tensor.stride(), str(tensor.dtype).removeprefix("torch."))


def binding(
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    dims: Sequence[int] = (),
    *,
    config: int = 0,
    align_bytes: int = 1,
    workspace_bytes: int = 0,
) -> Binding:
    """The case of these example tensors; data pointers off ``align_bytes`` use config 0."""
    specs_in, specs_out = tuple(map(spec_of, inputs)), tuple(map(spec_of, outputs))
    return Binding(specs_in, specs_out, tuple(dims), config, align_bytes, 0, workspace_bytes)
