/* The glue between one torch operator and its kernels. glue.py writes a source file that defines FORGE_OP, FORGE_DIGEST,
 * FORGE_INPUTS, FORGE_OUTPUTS and FORGE_CUDA (0 or 1) and includes this header; the library that comes out
 * implements the operator for one backend. It uses torch's C shims only, so it needs neither ATen nor CUDA headers, builds
 * in about two seconds, and one binary serves torch 2.11 and later.
 *
 * A *binding* is one exact case: input sizes, strides and element types, output layouts, and the kernel with its arguments.
 * A call looks its inputs up among the bindings and launches; no match is an error, never a guess.
 *
 * Calls take no lock. Bindings hang in hash buckets of singly linked lists that readers walk through atomics; only
 * writers lock. A binding that was taken out is not freed, because a call on another thread may be walking over it. */
#ifndef FORGE_GLUE_H
#define FORGE_GLUE_H

#ifndef TORCH_TARGET_VERSION
#define TORCH_TARGET_VERSION (((0ULL + 2) << 56) | ((0ULL + 11) << 48))
#endif
#include <torch/csrc/stable/c/shim.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#if FORGE_CUDA
#include <dlfcn.h>
#endif

#include "forge.h"

namespace forge {
namespace {

constexpr int kInputs = FORGE_INPUTS;
constexpr int kOutputs = FORGE_OUTPUTS;
constexpr int kDtypes = FORGE_BOOL + 1;
constexpr int64_t kWorkspaceAlign = 256;
constexpr int64_t kFormat = 1; /* of the words given to forge_bind; glue.py writes the same number */
static_assert(kInputs >= 1, "without a tensor input there is no device to dispatch on");
static_assert(kOutputs >= 1, "an operator without outputs has nothing to compute");

using Launch = int (*)(const ForgeTensor*, const ForgeTensor*, const int64_t*, int64_t, int64_t, void*, void*);

const char* const kName = "torch_forge::" FORGE_OP;

#define FORGE_TRY(call)                                                                    \
  do {                                                                                     \
    if ((call) != 0) throw std::runtime_error(std::string(kName) + ": torch failed in " #call); \
  } while (0)

/* A tensor reference that this call owns. */
class Owned {
 public:
  Owned() = default;
  ~Owned() {
    if (handle_ != nullptr) aoti_torch_delete_tensor_object(handle_);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;

  void take(StableIValue value) { handle_ = reinterpret_cast<AtenTensorHandle>(static_cast<uintptr_t>(value)); }
  AtenTensorHandle* receive() { return &handle_; }
  AtenTensorHandle get() const { return handle_; }
  StableIValue release() {
    const auto value = static_cast<StableIValue>(reinterpret_cast<uintptr_t>(handle_));
    handle_ = nullptr;
    return value;
  }

 private:
  AtenTensorHandle handle_ = nullptr;
};

/* torch's numbers for our element types, and back. */
struct Dtypes {
  int32_t torch[kDtypes];
  Dtypes()
      : torch{aoti_torch_dtype_float64(), aoti_torch_dtype_float32(), aoti_torch_dtype_float16(), aoti_torch_dtype_bfloat16(),
              aoti_torch_dtype_int64(),   aoti_torch_dtype_int32(),   aoti_torch_dtype_int16(),   aoti_torch_dtype_int8(),
              aoti_torch_dtype_uint8(),   aoti_torch_dtype_bool()} {}
};
const Dtypes kDtypeTable;

/* What a call sees of one input. */
struct View {
  int64_t ndim;
  const int64_t* sizes;
  const int64_t* strides;
  int32_t dtype;
  int32_t device_type;
  int32_t device_index;

  void read(AtenTensorHandle tensor) {
    int64_t *n = nullptr, *s = nullptr;
    FORGE_TRY(aoti_torch_get_dim(tensor, &ndim));
    FORGE_TRY(aoti_torch_get_sizes(tensor, &n));
    FORGE_TRY(aoti_torch_get_strides(tensor, &s));
    FORGE_TRY(aoti_torch_get_dtype(tensor, &dtype));
    FORGE_TRY(aoti_torch_get_device_type(tensor, &device_type));
    FORGE_TRY(aoti_torch_get_device_index(tensor, &device_index));
    sizes = n;
    strides = s;
  }
};

/* Whether two strides of a dimension of n elements lead to the same addresses. Compilers change the stride of a
 * dimension of one element freely, so it must not decide a match. */
inline bool same_stride(int64_t n, int64_t a, int64_t b) { return n <= 1 || a == b; }

struct Binding {
  int64_t id = 0;
  uint64_t hash = 0;
  Launch launch = nullptr;
  int64_t device_index = -1; /* -1: any */
  int64_t align = 1, config = 0, fallback = 0, workspace = 0;
  bool all_outputs_empty = false;
  int32_t torch_dtype[kInputs + kOutputs];
  ForgeTensor tensors[kInputs + kOutputs]; /* inputs, then outputs; data is filled in for each call */
  const int64_t* dims = nullptr;
  std::vector<int64_t> words; /* owns what the pointers above point to */
  std::atomic<Binding*> next{nullptr};
};

inline uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 29);
}

/* Of the sizes and element types; strides are left to the comparison. */
inline uint64_t mix_tensor(uint64_t hash, int32_t torch_dtype, int64_t ndim, const int64_t* sizes) {
  hash = mix(hash, (static_cast<uint64_t>(torch_dtype) << 32) | static_cast<uint64_t>(ndim));
  for (int64_t d = 0; d < ndim; ++d) hash = mix(hash, static_cast<uint64_t>(sizes[d]));
  return hash;
}

inline bool same_layout(const View& view, const ForgeTensor& wanted, int32_t torch_dtype) {
  if (view.dtype != torch_dtype || view.ndim != wanted.ndim) return false;
  bool empty = false, strides = true;
  for (int64_t d = 0; d < view.ndim; ++d) {
    if (view.sizes[d] != wanted.sizes[d]) return false;
    empty |= view.sizes[d] == 0;
    strides &= same_stride(view.sizes[d], view.strides[d], wanted.strides[d]);
  }
  return strides || empty;
}

class Table {
 public:
  const Binding* find(const View* views) const {
    uint64_t hash = 0;
    for (int i = 0; i < kInputs; ++i) hash = mix_tensor(hash, views[i].dtype, views[i].ndim, views[i].sizes);
    for (const Binding* b = bucket(hash).load(std::memory_order_acquire); b != nullptr;
         b = b->next.load(std::memory_order_acquire)) {
      if (b->hash == hash && matches(*b, views)) return b;
    }
    return nullptr;
  }

  int64_t add(std::unique_ptr<Binding> binding) {
    std::lock_guard<std::mutex> lock(writers_);
    binding->id = static_cast<int64_t>(all_.size());
    std::atomic<Binding*>& head = bucket(binding->hash);
    binding->next.store(head.load(std::memory_order_relaxed), std::memory_order_relaxed);
    head.store(binding.get(), std::memory_order_release); /* the newest is met first */
    all_.push_back(std::move(binding));
    live_ += 1;
    return all_.back()->id;
  }

  bool remove(int64_t id) {
    std::lock_guard<std::mutex> lock(writers_);
    if (id < 0 || id >= static_cast<int64_t>(all_.size())) return false;
    const Binding* target = all_[static_cast<size_t>(id)].get();
    std::atomic<Binding*>* link = &bucket(target->hash);
    for (Binding* b = link->load(); b != nullptr; link = &b->next, b = link->load()) {
      if (b != target) continue;
      link->store(b->next.load(), std::memory_order_release); /* b keeps its next: a reader on it still finds its way */
      live_ -= 1;
      return true;
    }
    return false;
  }

  void clear() {
    std::lock_guard<std::mutex> lock(writers_);
    for (auto& head : heads_) head.store(nullptr, std::memory_order_release);
    live_ = 0;
  }

  int64_t live() const { return live_.load(); }

 private:
  static constexpr size_t kBuckets = 256;

  static bool matches(const Binding& b, const View* views) {
    if (b.device_index >= 0 && b.device_index != views[0].device_index) return false;
    for (int i = 0; i < kInputs; ++i) {
      if (!same_layout(views[i], b.tensors[i], b.torch_dtype[i])) return false;
    }
    return true;
  }

  const std::atomic<Binding*>& bucket(uint64_t hash) const { return heads_[hash % kBuckets]; }
  std::atomic<Binding*>& bucket(uint64_t hash) { return heads_[hash % kBuckets]; }

  std::atomic<Binding*> heads_[kBuckets] = {};
  std::mutex writers_;
  std::atomic<int64_t> live_{0};
  std::vector<std::unique_ptr<Binding>> all_;
};

/* Never destroyed: calls may still run while the process exits. */
Table& table() {
  static Table& instance = *new Table();
  return instance;
}
std::atomic<int64_t> served{0};

/* ---- device ---------------------------------------------------------------------------------------------------------- */

#if FORGE_CUDA
/* torch's CUDA shims live in a library that torch loads by itself; found there, the glue links nothing of CUDA. */
template <typename Fn>
Fn cuda_shim(const char* symbol) {
  void* library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  void* fn = library == nullptr ? nullptr : dlsym(library, symbol);
  if (fn == nullptr) throw std::runtime_error(std::string(kName) + ": this torch has no CUDA support (" + symbol + ")");
  return reinterpret_cast<Fn>(fn);
}

void* current_stream(int32_t device_index) {
  static const auto get = cuda_shim<AOTITorchError (*)(int32_t, void**)>("aoti_torch_get_current_cuda_stream");
  void* stream = nullptr;
  FORGE_TRY(get(device_index, &stream));
  return stream;
}

/* Makes the inputs' device current, since a launch and an allocation go there. */
class DeviceScope {
 public:
  explicit DeviceScope(int32_t index) {
    int32_t current = -1;
    FORGE_TRY(aoti_torch_get_current_device_index(&current));
    if (current != index) FORGE_TRY(aoti_torch_create_device_guard(index, &guard_));
  }
  ~DeviceScope() {
    if (guard_ != nullptr) aoti_torch_delete_device_guard(guard_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  DeviceGuardHandle guard_ = nullptr;
};

/* torch's own text for a cudaError_t; it also clears the runtime's last-error flag. */
std::string cuda_message(int32_t error) {
  static const auto check =
      cuda_shim<AOTITorchError (*)(int32_t, const char*, const char*, uint32_t, bool, char**)>("torch_c10_cuda_check_msg");
  static const auto release = cuda_shim<void (*)(char*)>("torch_c10_cuda_free_error_msg");
  char* text = nullptr;
  check(error, __FILE__, "forge_launch", 0, true, &text);
  std::string message = text == nullptr ? "CUDA error " + std::to_string(error) : text;
  if (text != nullptr) release(text);
  return message;
}
#endif

/* ---- errors ---------------------------------------------------------------------------------------------------------- */

/* No streams here: where the compiler links its C++ library statically, writing to one crashed (torch 2.11, Ubuntu 24.04). */
std::string listed(const int64_t* numbers, int64_t count) {
  std::string out = "(";
  for (int64_t d = 0; d < count; ++d) out += (d ? ", " : "") + std::to_string(numbers[d]);
  return out + ")";
}

std::string described(const View& view) {
  static const char* const names[kDtypes] = {"float64", "float32", "float16", "bfloat16", "int64",
                                             "int32",   "int16",   "int8",    "uint8",    "bool"};
  const char* dtype = "not supported";
  for (int t = 0; t < kDtypes; ++t) {
    if (kDtypeTable.torch[t] == view.dtype) dtype = names[t];
  }
  return "\n  shape " + listed(view.sizes, view.ndim) + " stride " + listed(view.strides, view.ndim) + " dtype " + dtype;
}

[[noreturn]] void fail_no_binding(const View* views) {
  std::string text = std::string(kName) + ": no certified binding for these inputs; " + std::to_string(table().live()) +
                     " other cases are bound. Call the original function, or tune it for this case. Inputs:";
  for (int i = 0; i < kInputs; ++i) text += described(views[i]);
  throw std::runtime_error(text);
}

[[noreturn]] void fail_launch(int code) {
  if (code == FORGE_INDEX_ERROR) throw std::out_of_range("index out of range in self");
  std::string what;
  if (code == FORGE_BAD_CONFIG) {
    what = "the kernel has no such configuration";
  } else if (code == FORGE_UNSUPPORTED) {
    what = "the kernel refused these inputs";
#if FORGE_CUDA
  } else if (code >= FORGE_CUDA_ERROR) {
    what = cuda_message(code - FORGE_CUDA_ERROR);
#endif
  } else {
    what = "the kernel returned " + std::to_string(code);
  }
  throw std::runtime_error(std::string(kName) + ": " + what);
}

/* ---- the operator ---------------------------------------------------------------------------------------------------- */

void read_inputs(const Owned* inputs, View* views) {
  for (int i = 0; i < kInputs; ++i) views[i].read(inputs[i].get());
  for (int i = 1; i < kInputs; ++i) {
    if (views[i].device_type != views[0].device_type || views[i].device_index != views[0].device_index) {
      throw std::runtime_error(std::string(kName) + ": expected all tensors to be on the same device; input " +
                               std::to_string(i) + " is not where input 0 is");
    }
  }
}

void* allocate_workspace(const View& like, int64_t bytes, Owned& owner) {
  if (bytes == 0) return nullptr;
  const int64_t size = bytes + kWorkspaceAlign, stride = 1; /* torch aligns to 64 bytes on the CPU */
  FORGE_TRY(aoti_torch_empty_strided(1, &size, &stride, kDtypeTable.torch[FORGE_UINT8], like.device_type, like.device_index,
                                     owner.receive()));
  void* data = nullptr;
  FORGE_TRY(torch_get_mutable_data_ptr(owner.get(), &data));
  const auto address = reinterpret_cast<uintptr_t>(data);
  return reinterpret_cast<void*>((address + kWorkspaceAlign - 1) / kWorkspaceAlign * kWorkspaceAlign);
}

void allocate_outputs(const Binding& b, const View& like, Owned* outputs) {
  for (int o = 0; o < kOutputs; ++o) {
    const ForgeTensor& spec = b.tensors[kInputs + o];
    FORGE_TRY(aoti_torch_empty_strided(spec.ndim, spec.sizes, spec.strides, b.torch_dtype[kInputs + o], like.device_type,
                                       like.device_index, outputs[o].receive()));
  }
}

void run(const Binding& b, const View& like, const Owned* inputs, const Owned* outputs) {
  ForgeTensor tensors[kInputs + kOutputs];
  std::memcpy(tensors, b.tensors, sizeof(tensors));
  uintptr_t addresses = 0;
  for (int t = 0; t < kInputs + kOutputs; ++t) {
    /* The const pointer leaves a copy-on-write input shared. */
    if (t < kInputs) {
      const void* data = nullptr;
      FORGE_TRY(torch_get_const_data_ptr(inputs[t].get(), &data));
      tensors[t].data = const_cast<void*>(data);
    } else {
      FORGE_TRY(torch_get_mutable_data_ptr(outputs[t - kInputs].get(), &tensors[t].data));
    }
    addresses |= reinterpret_cast<uintptr_t>(tensors[t].data);
  }
  const bool aligned = (addresses & static_cast<uintptr_t>(b.align - 1)) == 0;
  Owned scratch;
  void* workspace = allocate_workspace(like, b.workspace, scratch);
  int64_t threads = 1;
  void* stream = nullptr;
#if FORGE_CUDA
  stream = current_stream(like.device_index);
#else
  uint32_t intra_op = 1;
  FORGE_TRY(torch_get_num_threads(&intra_op));
  threads = intra_op;
#endif
  const int code =
      b.launch(tensors, tensors + kInputs, b.dims, aligned ? b.config : b.fallback, threads, workspace, stream);
  if (code != FORGE_OK) fail_launch(code);
}

void boxed(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
  Owned inputs[kInputs], outputs[kOutputs];
  if (argument_count != kInputs || result_count != kOutputs) throw std::runtime_error(std::string(kName) + ": wrong schema");
  for (int i = 0; i < kInputs; ++i) inputs[i].take(stack[i]);
  View views[kInputs];
  read_inputs(inputs, views);
  const Binding* binding = table().find(views);
  if (binding == nullptr) fail_no_binding(views);
#if FORGE_CUDA
  const DeviceScope scope(views[0].device_index);
#endif
  allocate_outputs(*binding, views[0], outputs);
  if (!binding->all_outputs_empty) run(*binding, views[0], inputs, outputs);
  served.fetch_add(1, std::memory_order_relaxed);
  for (int o = 0; o < kOutputs; ++o) stack[o] = outputs[o].release();
}

/* ---- reading a binding ----------------------------------------------------------------------------------------------- */

class Words {
 public:
  Words(const int64_t* at, int64_t count) : at_(at), end_(at + count) {}
  bool ok() const { return ok_; }
  bool done() const { return ok_ && at_ == end_; }
  int64_t next() {
    const int64_t* word = take(1);
    return word == nullptr ? 0 : *word;
  }
  const int64_t* take(int64_t count) {
    if (!ok_ || count < 0 || count > end_ - at_) {
      ok_ = false;
      return nullptr;
    }
    const int64_t* start = at_;
    at_ += count;
    return start;
  }

 private:
  const int64_t* at_;
  const int64_t* end_;
  bool ok_ = true;
};

/* format, device, align, config, fallback, workspace, #dims, dims; then a tensor each: dtype, ndim, sizes, strides. */
std::unique_ptr<Binding> read_binding(void* kernel, const int64_t* given, int64_t count) {
  auto b = std::make_unique<Binding>();
  b->words.assign(given, given + count);
  Words words(b->words.data(), count);
  const int64_t format = words.next();
  b->launch = reinterpret_cast<Launch>(kernel);
  b->device_index = words.next();
  b->align = words.next();
  b->config = words.next();
  b->fallback = words.next();
  b->workspace = words.next();
  b->dims = words.take(words.next());
  bool valid = format == kFormat && kernel != nullptr && b->align >= 1 && (b->align & (b->align - 1)) == 0 && b->workspace >= 0;
  b->all_outputs_empty = true;
  for (int t = 0; t < kInputs + kOutputs && words.ok(); ++t) {
    ForgeTensor& tensor = b->tensors[t];
    tensor.data = nullptr;
    tensor.dtype = static_cast<int32_t>(words.next());
    const int64_t ndim = words.next();
    tensor.ndim = static_cast<int32_t>(ndim);
    tensor.sizes = words.take(ndim);
    tensor.strides = words.take(ndim);
    if (!words.ok() || tensor.dtype < 0 || tensor.dtype >= kDtypes) return nullptr;
    b->torch_dtype[t] = kDtypeTable.torch[tensor.dtype];
    bool empty = false;
    for (int64_t d = 0; d < ndim; ++d) empty |= tensor.sizes[d] == 0;
    if (t < kInputs) {
      b->hash = mix_tensor(b->hash, b->torch_dtype[t], ndim, tensor.sizes);
    } else {
      b->all_outputs_empty &= empty;
    }
  }
  return valid && words.done() ? std::move(b) : nullptr;
}

}  // namespace
}  // namespace forge

/* ---- what the loader calls ------------------------------------------------------------------------------------------- */

#define FORGE_EXPORT extern "C" __attribute__((visibility("default")))

FORGE_EXPORT const char* forge_op_name() { return FORGE_OP; }
FORGE_EXPORT const char* forge_digest() { return FORGE_DIGEST; }
FORGE_EXPORT const char* forge_backend() { return FORGE_CUDA ? "cuda" : "cpu"; }

/* Makes this library the implementation of the operator on its backend, for the life of the process. Called once; 0 is success. */
FORGE_EXPORT int forge_register() {
  static TorchLibraryHandle library = nullptr;
  if (library != nullptr) return 0;
  if (aoti_torch_library_init_impl("torch_forge", FORGE_CUDA ? "CUDA" : "CPU", __FILE__, __LINE__, &library) != 0) return 1;
  return torch_library_impl(library, FORGE_OP, &forge::boxed, TORCH_ABI_VERSION) == 0 ? 0 : 2;
}

/* The binding's id, or -1 if the words are malformed. */
FORGE_EXPORT int64_t forge_bind(void* kernel, const int64_t* words, int64_t count) {
  auto binding = forge::read_binding(kernel, words, count);
  return binding == nullptr ? -1 : forge::table().add(std::move(binding));
}
FORGE_EXPORT int forge_unbind(int64_t id) { return forge::table().remove(id) ? 0 : 1; }
FORGE_EXPORT void forge_clear() { forge::table().clear(); }
FORGE_EXPORT int64_t forge_bound() { return forge::table().live(); }
/* Calls that ran to the end since the library was loaded. */
FORGE_EXPORT int64_t forge_served() { return forge::served.load(); }

#endif
