/* Runs forge_launch of one library on prepared inputs, in a process with nothing else in it: what sanitizers watch.
 *
 *   driver NOTES LIBRARY LAUNCHES FILL DEVICE RUN...
 *
 * NOTES:    what happens is appended here, one fact a line, flushed before the next thing is done.
 * LAUNCHES: how often each run is launched, one after the other, into the same buffers.
 * FILL:     1 fills outputs and workspace before each launch, with another byte each time; 0 leaves them as allocated.
 * DEVICE:   index of the GPU; ignored on the CPU.
 * RUN:      a file of int64 (config, threads, workspace bytes, number of dims, dims, then inputs and outputs: their number and for
 *           each dtype, ndim, sizes, strides, bytes it spans, bytes of misalignment), followed by the bytes of all inputs.
 *
 * Everything is as large as it must be and no larger, so that the first byte outside is one that a sanitizer knows to be outside.
 * Compiled with -DFORGE_CUDA it launches on a GPU, else on the CPU, under AddressSanitizer. It exits with 0 if it came to its end;
 * whether all is well is in NOTES. */
#include "forge.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#ifdef FORGE_CUDA
#include <cuda_runtime_api.h>
#else
#include <sanitizer/asan_interface.h>
#endif

typedef int (*Launch)(const ForgeTensor*, const ForgeTensor*, const int64_t*, int64_t, int64_t, void*, void*);

static FILE* notes;

static void note(const char* event, long long number) {
  fprintf(notes, "%s %lld\n", event, number);
  fflush(notes);
}

static void give_up(const char* why, const char* detail) {
  fprintf(notes, "failed %s: %s\n", why, detail);
  fclose(notes);
  _Exit(0);
}

/* One tensor or the workspace: `bytes` bytes at `data`. */
struct Buffer {
  char* base;
  char* data;
  size_t bytes;
};

#ifdef FORGE_CUDA
static cudaStream_t stream;

static void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) give_up(what, cudaGetErrorString(status));
}

static void open_device(int device) {
  check(cudaSetDevice(device), "cudaSetDevice");
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  void* probe;
  check(cudaMalloc(&probe, 256), "cudaMalloc");
  check(cudaMemset(probe, 0, 256), "cudaMemset");
  check(cudaFree(probe), "cudaFree");
}

static void* stream_handle() { return stream; }

static Buffer allocate(size_t bytes, size_t offset) {
  Buffer b = {nullptr, nullptr, bytes};
  if (bytes == 0) return b;
  check(cudaMalloc((void**)&b.base, offset + bytes), "cudaMalloc");
  b.data = b.base + offset;
  return b;
}

static void release(const Buffer& b) { check(cudaFree(b.base), "cudaFree"); }

static void fill(const Buffer& b, int byte) {
  if (b.bytes) check(cudaMemset(b.data, byte, b.bytes), "cudaMemset");
}

static void load(const Buffer& b, FILE* file) {
  if (b.bytes == 0) return;
  std::vector<char> host(b.bytes);
  if (fread(host.data(), 1, b.bytes, file) != b.bytes) give_up("run file", "too short");
  check(cudaMemcpy(b.data, host.data(), b.bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
}

static std::vector<char> content(const Buffer& b) {
  std::vector<char> host(b.bytes);
  if (b.bytes) check(cudaMemcpy(host.data(), b.data, b.bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
  return host;
}

static void settle() {
  check(cudaDeviceSynchronize(), "the device ends with");
  check(cudaGetLastError(), "a launch failed");
}
#else
/* On either side of a tensor lie this many bytes that nobody may touch: a wrong stride lands in them, not in a neighbour. */
static const size_t ZONE = 64 << 10;
static const size_t ALIGNMENT = 512;

static void open_device(int) {}
static void* stream_handle() { return nullptr; }

static Buffer allocate(size_t bytes, size_t offset) {
  Buffer b = {nullptr, nullptr, bytes};
  if (bytes == 0) return b;
  size_t total = (ZONE + offset + bytes + ZONE + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  b.base = (char*)aligned_alloc(ALIGNMENT, total);
  if (b.base == nullptr) give_up("aligned_alloc", "out of memory");
  b.data = b.base + ZONE + offset;
  __asan_poison_memory_region(b.base, ZONE + offset);
  __asan_poison_memory_region(b.data + bytes, total - ZONE - offset - bytes);
  return b;
}

static void release(const Buffer& b) { free(b.base); }

static void fill(const Buffer& b, int byte) {
  if (b.bytes) memset(b.data, byte, b.bytes);
}

static void load(const Buffer& b, FILE* file) {
  if (b.bytes && fread(b.data, 1, b.bytes, file) != b.bytes) give_up("run file", "too short");
}

static std::vector<char> content(const Buffer& b) { return std::vector<char>(b.data, b.data + b.bytes); }

static void settle() {}
#endif

/* An array on the heap with exactly n entries, so that reading another one is an error. */
template <class T>
static T* exactly(size_t n) {
  return (T*)malloc(n * sizeof(T));
}

static int64_t number(FILE* file) {
  int64_t value = 0;
  if (fread(&value, sizeof value, 1, file) != 1) give_up("run file", "too short");
  return value;
}

static int64_t* numbers(FILE* file, int64_t count) {
  int64_t* values = exactly<int64_t>(count);
  for (int64_t k = 0; k < count; ++k) values[k] = number(file);
  return values;
}

struct Tensors {
  ForgeTensor* described;
  std::vector<Buffer> buffers;
};

static Tensors tensors(FILE* file, const char* role) {
  int64_t count = number(file);
  Tensors all = {exactly<ForgeTensor>(count), {}};
  for (int64_t k = 0; k < count; ++k) {
    ForgeTensor& t = all.described[k];
    t.dtype = (int32_t)number(file);
    t.ndim = (int32_t)number(file);
    t.sizes = numbers(file, t.ndim);
    t.strides = numbers(file, t.ndim);
    size_t bytes = (size_t)number(file), offset = (size_t)number(file);
    all.buffers.push_back(allocate(bytes, offset));
    t.data = all.buffers.back().data;
    fprintf(notes, "tensor %p %zu %s %lld\n", t.data, bytes, role, (long long)k);
  }
  fflush(notes);
  return all;
}

static void release(Tensors& all) {
  for (size_t k = 0; k < all.buffers.size(); ++k) {
    release(all.buffers[k]);
    free((void*)all.described[k].sizes);
    free((void*)all.described[k].strides);
  }
  free(all.described);
}

static const int PATTERNS[] = {0xFF, 0x5B};

/* Whether a byte of this output is no longer what it was filled with. */
static bool touched(const Buffer& b, int pattern) {
  for (char c : content(b))
    if (c != (char)pattern) return true;
  return b.bytes == 0;
}

static bool run(Launch launch, const char* path, int launches, bool filled) {
  FILE* file = fopen(path, "rb");
  if (file == nullptr) give_up("run file", path);
  int64_t config = number(file), threads = number(file), workspace_bytes = number(file), ndims = number(file);
  int64_t* dims = numbers(file, ndims);
  Tensors in = tensors(file, "input"), out = tensors(file, "output");
  Buffer workspace = allocate((size_t)workspace_bytes, 0);
  fprintf(notes, "tensor %p %lld workspace 0\n", (void*)workspace.data, (long long)workspace_bytes);
  for (const Buffer& b : in.buffers) load(b, file);
  fclose(file);
  int code = FORGE_OK;
  for (int k = 0; k < launches && code == FORGE_OK; ++k) {
    const int pattern = PATTERNS[k % 2];
    if (filled) {
      for (const Buffer& b : out.buffers) fill(b, pattern);
      fill(workspace, pattern);
      settle();
    }
    note("launch", k);
    code = launch(in.described, out.described, dims, config, threads, workspace.data, stream_handle());
    note("code", code);
    if (code != FORGE_OK) break;
    settle();
    for (size_t o = 0; filled && o < out.buffers.size(); ++o)
      if (!touched(out.buffers[o], pattern)) note("untouched", (long long)o);
  }
  release(in);
  release(out);
  release(workspace);
  free(dims);
  return code == FORGE_OK;
}

int main(int argc, char** argv) {
  if (argc < 6 || (notes = fopen(argv[1], "ab")) == nullptr) return 2;
  open_device(atoi(argv[5]));
  note("ready", 0);
  void* library = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) give_up("dlopen", dlerror());
  Launch launch = (Launch)dlsym(library, "forge_launch");
  if (launch == nullptr) give_up("dlsym", dlerror());
  bool well = true;
  for (int k = 6; k < argc && well; ++k) {
    note("run", k - 6);
    well = run(launch, argv[k], atoi(argv[3]), atoi(argv[4]) != 0);
  }
  if (well) note("done", 0);
  fclose(notes);
  fflush(stdout);
  fflush(stderr);
  _Exit(0);
}
