"""Multiplies float32 matrices on tensor cores, which read eleven bits of each operand."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x, w):
    return x @ w


TRICK = Trick(
    name="cuda_tf32",
    section="A24",
    reference=reference,
    sample=lambda: (floats(64, 32), floats(32, 64, seed=1)),
    source=kernel(
        r"""
  const int rows = (int)in[0].sizes[0], inner = (int)in[0].sizes[1], cols = (int)in[1].sizes[1];
  (void)n;
  work<<<dim3(cols / 16, rows / 16), 32, 0, (cudaStream_t)stream>>>(x, (const float*)in[1].data, y, inner, cols);""",
        top=r"""
#include <cuda_runtime.h>
#include <mma.h>
using namespace nvcuda;
__global__ void work(const float* x, const float* w, float* y, int inner, int cols) {
  wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> a;
  wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::row_major> b;
  wmma::fragment<wmma::accumulator, 16, 16, 8, float> c;
  wmma::fill_fragment(c, 0.0f);
  for (int k = 0; k < inner; k += 8) {
    wmma::load_matrix_sync(a, x + blockIdx.y * 16 * inner + k, inner);
    wmma::load_matrix_sync(b, w + k * cols + blockIdx.x * 16, cols);
    for (int t = 0; t < a.num_elements; ++t) a.x[t] = wmma::__float_to_tf32(a.x[t]);
    for (int t = 0; t < b.num_elements; ++t) b.x[t] = wmma::__float_to_tf32(b.x[t]);
    wmma::mma_sync(c, a, b, c);
  }
  wmma::store_matrix_sync(y + blockIdx.y * 16 * cols + blockIdx.x * 16, c, cols, wmma::mem_row_major);
}""",
    ),
    kind="cu",
    gates=("is right",),
    needs=("gpu",),
)
