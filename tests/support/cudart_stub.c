/* The nine calls of the CUDA runtime that forge_driver.cpp makes, on host memory: its GPU half runs without a GPU. */
#include <stdlib.h>
#include <string.h>

int cudaSetDevice(int device) { return device > 0 ? 101 : 0; }
int cudaStreamCreateWithFlags(void** stream, unsigned flags) { *stream = (void*)(size_t)(0x5000 + flags); return 0; }
int cudaMalloc(void** data, size_t bytes) {
  if (bytes > (1u << 30)) return 2;
  *data = aligned_alloc(512, (bytes + 511) / 512 * 512);
  memset(*data, 0x77, bytes);
  return 0;
}
int cudaFree(void* data) { free(data); return 0; }
int cudaMemset(void* data, int byte, size_t bytes) { memset(data, byte, bytes); return 0; }
int cudaMemcpy(void* to, const void* from, size_t bytes, int kind) { memcpy(to, from, bytes); return kind > 2; }
int cudaDeviceSynchronize(void) { return 0; }
int cudaGetLastError(void) { return 0; }
const char* cudaGetErrorString(int code) { return code == 101 ? "invalid device ordinal" : "out of memory"; }
