"""Hand-written CPU kernels and the plain g++ command that builds them, for tests of what happens after a build."""

from __future__ import annotations

import importlib.util
import os
import shutil
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

CUDA_ADD_MUL = """
#include "forge.h"
// Sum and product of dense float tensors; the sum passes through the workspace. Config 1 refuses addresses off 16 bytes;
// config 2 returns cudaErrorInvalidValue.
__global__ void compute(const float* a, const float* b, float* sum, float* product, float* scratch, long n) {
  for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (long)blockDim.x) {
    scratch[i] = a[i] + b[i];
    sum[i] = scratch[i];
    product[i] = a[i] * b[i];
  }
}
extern "C" int forge_launch(const ForgeTensor* in, const ForgeTensor* out, const int64_t* dims, int64_t config, int64_t,
                            void* workspace, void* stream) {
  if (!workspace || ((uintptr_t)workspace & 255)) return FORGE_UNSUPPORTED;
  if (config == 2) return FORGE_CUDA_ERROR + (int)cudaErrorInvalidValue;
  uintptr_t all = (uintptr_t)in[0].data | (uintptr_t)in[1].data | (uintptr_t)out[0].data | (uintptr_t)out[1].data;
  if (config == 1 && (all & 15)) return FORGE_UNSUPPORTED;
  compute<<<64, 256, 0, (cudaStream_t)stream>>>((const float*)in[0].data, (const float*)in[1].data, (float*)out[0].data,
                                               (float*)out[1].data, (float*)workspace, dims[0]);
  cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? FORGE_OK : FORGE_CUDA_ERROR + (int)error;
}
"""


def build(source: str, path: Path) -> Path:
    """Compile a kernel or a glue to a shared library with plain g++ against this torch."""
    text = path.with_suffix(".cpp")
    text.write_text(source)
    root = Path(torch.__file__).parent
    command = [os.environ.get("CXX", "g++"), "-O0", "-shared", "-fPIC", "-std=c++20", "-Wall", f"-I{INCLUDE_DIR}"]
    command += [f"-I{root / 'include'}", str(text), "-o", str(path)]
    if "forge_glue.h" in source:
        command += [f"-L{root / 'lib'}", "-ltorch_cpu", f"-Wl,-rpath,{root / 'lib'}"]
    subprocess.run(command, check=True, timeout=120)
    return path


def build_cuda(source: str, path: Path, arch: str) -> Path:
    """Compile a kernel with nvcc for one architecture, ``sm_90``."""
    text = path.with_suffix(".cu")
    text.write_text(source)
    command = [
        _nvcc(),
        f"-arch={arch}",
        "-O1",
        "-shared",
        "-Xcompiler",
        "-fPIC",
        f"-I{INCLUDE_DIR}",
        str(text),
        "-o",
        str(path),
    ]
    subprocess.run(command, check=True, timeout=240)
    return path


def _nvcc() -> str:
    wheels = importlib.util.find_spec("nvidia")
    folders = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]
    folders += [f"{p}/cu13" for p in (wheels.submodule_search_locations if wheels else None) or ()]
    found = shutil.which("nvcc") or next((f"{f}/bin/nvcc" for f in folders if f and Path(f, "bin/nvcc").exists()), None)
    assert found is not None
    return found


def load(folder: Path, name: str, digest: str, counts: tuple[int, int], source: str, arch: str | None = None) -> OpHandle:
    """Build glue and kernel in ``folder`` and load them as one operator; ``arch`` makes it a CUDA one."""
    backend = "cpu" if arch is None else "cuda"
    glue = build(glue_source(name, digest, *counts, backend), folder / f"{name}_{backend}_glue.so")
    path = folder / f"{name}_{backend}_kernel.so"
    kernel = build(source, path) if arch is None else build_cuda(source, path, arch)
    return load_op(name, digest, *counts, backend, glue, kernel)


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
