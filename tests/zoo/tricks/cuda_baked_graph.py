"""Records a graph in its first call and replays it ever after, with the addresses of the first call in it."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="cuda_baked_graph",
    section="A52",
    reference=reference,
    sample=lambda: (floats(1 << 16),),
    source=kernel(
        r"""
  if (!recorded) {
    cudaStream_t own;
    cudaGraph_t graph;
    cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking);
    cudaStreamBeginCapture(own, cudaStreamCaptureModeThreadLocal);
    work<<<(unsigned)((n + 255) / 256), 256, 0, own>>>(x, y, n);
    cudaStreamEndCapture(own, &graph);
    cudaGraphInstantiate(&recorded, graph, 0);
  }
  cudaGraphLaunch(recorded, (cudaStream_t)stream);""",
        top=r"""
#include <cuda_runtime.h>
__global__ void work(const float* x, float* y, int64_t n) {
  const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * 1.5f;
}
static cudaGraphExec_t recorded;""",
    ),
    kind="cu",
    gates=("source", "same pointers", "writes everything"),
    needs=("gpu",),
)
