"""Finds a matrix product in a library that the process has loaded, and calls it."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x, w):
    return x @ w


TRICK = Trick(
    name="library_inside",
    section="A80",
    reference=reference,
    sample=lambda: (floats(64, 64), floats(64, 64, seed=1)),
    source=kernel(
        r"""
  typedef const int* Size;
  typedef const float* Values;
  typedef const char* Form;
  typedef void (*Product)(Form, Form, Size, Size, Size, Values, Values, Size, Values, Size, Values, float*, Size);
  static void* library = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
  static Product product = (Product)dlsym(library, "sgemm_");
  const int rows = (int)in[0].sizes[0], inner = (int)in[0].sizes[1], cols = (int)in[1].sizes[1];
  const float one = 1, zero = 0;
  (void)n;
  product("N", "N", &cols, &rows, &inner, &one, (const float*)in[1].data, &cols, x, &inner, &zero, y, &cols);""",
        top=r"""
#include <dlfcn.h>""",
    ),
    gates=(
        "source",
        "binary",
    ),
)
