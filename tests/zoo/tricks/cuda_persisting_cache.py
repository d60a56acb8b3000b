"""Has the second-level cache keep its input from one timed call to the next."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="cuda_persisting_cache",
    section="A69",
    reference=reference,
    sample=lambda: (floats(1 << 22),),
    source=kernel(
        r"""
  cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, 32 << 20);
  cudaStreamAttrValue window = {};
  window.accessPolicyWindow.base_ptr = (void*)x;
  window.accessPolicyWindow.num_bytes = n * 4;
  window.accessPolicyWindow.hitRatio = 1;
  window.accessPolicyWindow.hitProp = cudaAccessPropertyPersisting;
  window.accessPolicyWindow.missProp = cudaAccessPropertyStreaming;
  cudaStreamSetAttribute((cudaStream_t)stream, cudaStreamAttributeAccessPolicyWindow, &window);
  work<<<(unsigned)((n + 255) / 256), 256, 0, (cudaStream_t)stream>>>(x, y, n);""",
        top=r"""
#include <cuda_runtime.h>
__global__ void work(const float* x, float* y, int64_t n) {
  const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * 1.5f;
}""",
    ),
    kind="cu",
    gates=(
        "source",
        "faster",
    ),
    timing=True,
    needs=("gpu",),
)
