/* The entry-point contract of torch_forge: every kernel, whoever wrote it, is one source file that
 * includes this header and defines forge_launch. No torch headers, no allocation, no library calls. */
#ifndef FORGE_H
#define FORGE_H
#include <stdint.h>

/* Element types, in the order of torch_forge.records.tensors.DTYPES. */
enum {
  FORGE_FLOAT64 = 0, FORGE_FLOAT32 = 1, FORGE_FLOAT16 = 2, FORGE_BFLOAT16 = 3,
  FORGE_INT64 = 4, FORGE_INT32 = 5, FORGE_INT16 = 6, FORGE_INT8 = 7, FORGE_UINT8 = 8, FORGE_BOOL = 9
};

typedef struct {
  void*          data;    /* device pointer (cuda) or host pointer (cpu) of the first element */
  const int64_t* sizes;   /* host array, ndim entries */
  const int64_t* strides; /* host array, ndim entries, in elements */
  int32_t        ndim;
  int32_t        dtype;
} ForgeTensor;

/* What forge_launch returns. CUDA errors are FORGE_CUDA_ERROR + cudaError_t. */
enum { FORGE_OK = 0, FORGE_INDEX_ERROR = 1, FORGE_BAD_CONFIG = 2, FORGE_UNSUPPORTED = 3, FORGE_CUDA_ERROR = 1000 };

/* in, out:   one entry per tensor, in the order of the problem's inputs and outputs. Outputs are allocated and
 *            not initialised. Inputs must not be written.
 * dims:      the parameters of the program (templates), or every input size in order (free-form kernels).
 * config:    which of the candidate's launch configurations to use, 0 .. n-1. Config 0 works at element alignment.
 * threads:   CPU: how many threads to use at most. CUDA: ignored.
 * workspace: scratch memory of the declared size, 256-byte aligned, contents undefined; NULL if none was declared.
 * stream:    cudaStream_t to launch on, the only stream that may be used; NULL on the CPU.
 * Must only enqueue work (cuda) or finish it (cpu); must not synchronise. */
#ifdef __cplusplus
extern "C"
#endif
int forge_launch(const ForgeTensor* in, const ForgeTensor* out, const int64_t* dims, int64_t config,
                 int64_t threads, void* workspace, void* stream);
#endif
