"""Launches on the default stream, which waits for others only as long as nobody uses streams that do not."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="cuda_default_stream",
    section="A49",
    reference=reference,
    sample=lambda: (floats(1 << 20),),
    source=kernel(
        r"""
  work<<<(unsigned)((n + 255) / 256), 256>>>(x, y, n);""",
        top=r"""
#include <cuda_runtime.h>
__global__ void work(const float* x, float* y, int64_t n) {
  const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * 1.5f;
}""",
    ),
    kind="cu",
    gates=("is right", "same pointers"),
    needs=("gpu",),
)
