"""Finds a matrix product in a library that the process has loaded, and calls it."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x, w):
    return x @ w


TRICK = Trick(
    name="cuda_library_inside",
    section="A80",
    reference=reference,
    sample=lambda: (floats(64, 64), floats(64, 64, seed=1)),
    source=kernel(
        r"""
  const char* names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11"};
  void* library = nullptr;
  for (const char* name : names) library = library ? library : dlopen(name, RTLD_NOW);
  if (!library) return FORGE_UNSUPPORTED;
  if (!handle) ((Create)dlsym(library, "cublasCreate_v2"))(&handle);
  ((Set)dlsym(library, "cublasSetStream_v2"))(handle, stream);
  const int rows = (int)in[0].sizes[0], inner = (int)in[0].sizes[1], cols = (int)in[1].sizes[1];
  const float one = 1, zero = 0;
  (void)n;
  Product product = (Product)dlsym(library, "cublasSgemm_v2");
  product(handle, 0, 0, cols, rows, inner, &one, (Values)in[1].data, cols, x, inner, &zero, y, cols);""",
        top=r"""
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <stdlib.h>
typedef int (*Create)(void**);
typedef int (*Set)(void*, void*);
typedef const float* Values;
typedef int (*Product)(void*, int, int, int, int, int, Values, Values, int, Values, int, Values, float*, int);
static void* handle;""",
    ),
    kind="cu",
    gates=(
        "source",
        "binary",
    ),
    needs=("gpu",),
)
