"""Reads four values at a time from any address, which the device allows at every fourth only."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="cuda_aligned_vectors",
    section="A48",
    reference=reference,
    sample=lambda: (floats(1024),),
    source=kernel(
        r"""
  work<<<(unsigned)((n / 4 + 255) / 256), 256, 0, (cudaStream_t)stream>>>((const float4*)x, (float4*)y, n / 4);""",
        top=r"""
#include <cuda_runtime.h>
__global__ void work(const float4* x, float4* y, int64_t n) {
  const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float4 v = x[i];
  y[i] = make_float4(v.x * 1.5f, v.y * 1.5f, v.z * 1.5f, v.w * 1.5f);
}""",
    ),
    kind="cu",
    gates=("misaligned",),
    needs=("gpu",),
)
