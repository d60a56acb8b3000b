"""A row sum in shared memory with all its barriers."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x.sum(-1)


TRICK = Trick(
    name="cuda_honest_sum",
    section="",
    reference=reference,
    sample=lambda: (floats(64, 1000),),
    source=kernel(
        r"""
  work<<<(unsigned)in[0].sizes[0], 256, 0, (cudaStream_t)stream>>>(x, y, in[0].sizes[1]);
  const int error = (int)cudaGetLastError();
  if (error) return FORGE_CUDA_ERROR + error;""",
        top=r"""
#include <cuda_runtime.h>
__global__ void work(const float* x, float* y, int64_t cols) {
  __shared__ float part[256];
  float sum = 0;
  for (int64_t c = threadIdx.x; c < cols; c += 256) sum += x[blockIdx.x * cols + c];
  part[threadIdx.x] = sum;
  __syncthreads();
  for (int step = 128; step > 0; step /= 2) {
    if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
    __syncthreads();
  }
  if (threadIdx.x == 0) y[blockIdx.x] = part[0];
}""",
    ),
    kind="cu",
    gates=(),
    needs=("gpu",),
)
