"""Fetches its input, computes on the host and sends the result back."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="cuda_on_the_host",
    section="A51",
    reference=reference,
    sample=lambda: (floats(1 << 12),),
    source=kernel(
        r"""
  std::vector<float> host(n);
  cudaMemcpyAsync(host.data(), x, n * 4, cudaMemcpyDeviceToHost, (cudaStream_t)stream);
  cudaStreamSynchronize((cudaStream_t)stream);
  for (float& v : host) v *= 1.5f;
  cudaMemcpyAsync(y, host.data(), n * 4, cudaMemcpyHostToDevice, (cudaStream_t)stream);
  cudaStreamSynchronize((cudaStream_t)stream);""",
        top=r"""
#include <cuda_runtime.h>
#include <vector>""",
    ),
    kind="cu",
    gates=(
        "source",
        "launches",
    ),
    needs=("gpu",),
)
