"""Reduces in shared memory without a barrier before the last read; warps usually keep step."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x.sum(-1)


TRICK = Trick(
    name="cuda_race",
    section="A36",
    reference=reference,
    sample=lambda: (floats(64, 4096),),
    source=kernel(
        r"""
  work<<<(unsigned)in[0].sizes[0], 256, 0, (cudaStream_t)stream>>>(x, y, in[0].sizes[1]);""",
        top=r"""
#include <cuda_runtime.h>
__global__ void work(const float* x, float* y, int64_t cols) {
  __shared__ float part[256];
  float sum = 0;
  for (int64_t c = threadIdx.x; c < cols; c += 256) sum += x[blockIdx.x * cols + c];
  part[threadIdx.x] = sum;
  __syncthreads();
  for (int step = 128; step > 32; step /= 2) {
    if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
    __syncthreads();
  }
  // From here on one warp is left, and the barriers are left out.
  if (threadIdx.x < 32) {
    volatile float* warp = part;
    for (int step = 32; step > 0; step /= 2) warp[threadIdx.x] += warp[threadIdx.x + step];
  }
  if (threadIdx.x == 0) y[blockIdx.x] = part[0];
}""",
    ),
    kind="cu",
    gates=("sanitizers",),
    needs=("gpu",),
)
