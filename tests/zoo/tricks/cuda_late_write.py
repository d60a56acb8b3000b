"""Writes from a stream of its own, and only after a while: after an immediate look, before a leisurely one."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="cuda_late_write",
    section="A59",
    reference=reference,
    sample=lambda: (floats(1 << 16),),
    source=kernel(
        r"""
  if (!own) cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking);
  work<<<(unsigned)((n + 255) / 256), 256, 0, own>>>(x, y, n);""",
        top=r"""
#include <cuda_runtime.h>
__global__ void work(const float* x, float* y, int64_t n) {
  const long long begin = clock64();
  while (clock64() - begin < 400000) {
  }
  const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * 1.5f;
}
static cudaStream_t own;""",
    ),
    kind="cu",
    gates=("source", "writes everything", "clocks agree", "same pointers"),
    timing=True,
    needs=("gpu",),
)
