/* CUDA on the CPU, for tests: what the templates use of the language and runtime, so that a generated .cu runs under g++.
 *
 * Every thread of a block is a fiber; a shuffle or a barrier is a meeting that all its threads must reach, and a block
 * in which nobody can go on is reported as a deadlock. Vector loads are checked for alignment. Blocks run one after
 * the other in one OS thread, and shared memory keeps what the block before left there: slow, and the same every time. */
#ifndef FORGE_EMULATOR_H
#define FORGE_EMULATOR_H
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <vector>
#include "forge.h"

#define __global__
#define __device__
#define __shared__ static
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)

struct dim3 { unsigned x, y, z; };
static dim3 threadIdx, blockIdx;
struct uint2 { uint32_t x, y; } __attribute__((aligned(8)));
struct uint4 { uint32_t x, y, z, w; } __attribute__((aligned(16)));

enum { EMULATOR_DEADLOCK = 9001, EMULATOR_MISALIGNED = 9002, EMULATOR_TRAP = 9003 };

struct Meeting { int arrived = 0, generation = 0; };
struct Emulator {
  std::vector<ucontext_t> fibers;
  std::vector<char> finished;
  char* stacks = nullptr; /* not cleared: a thousand stacks, of which a page or two are used */
  ucontext_t scheduler;
  int current = 0, size = 0, error = 0, progress = 0;
  Meeting block;
  std::vector<Meeting> warps;
  std::vector<uint64_t> slots;
  void (*run)(void*) = nullptr;
  void* argument = nullptr;
};
static Emulator emulator;

static void emulator_yield() { swapcontext(&emulator.fibers[emulator.current], &emulator.scheduler); }
static void emulator_stop(int error) {
  if (!emulator.error) emulator.error = error;
  emulator.finished[emulator.current] = 1;
  emulator_yield();
}
static void emulator_meet(Meeting& m, int everybody) {
  const int generation = m.generation;
  ++emulator.progress;
  if (++m.arrived == everybody) {
    m.arrived = 0;
    ++m.generation;
    return;
  }
  while (m.generation == generation && !emulator.error) emulator_yield();
  if (emulator.error) emulator_stop(emulator.error);
}
static void emulator_fiber() {
  emulator.run(emulator.argument);
  ++emulator.progress;
  emulator.finished[emulator.current] = 1;
  emulator_yield();
}
static int emulator_block(int threads) {
  Emulator& e = emulator;
  constexpr size_t kStack = 128 << 10;
  e.size = threads;
  e.fibers.resize(threads);
  if (!e.stacks) e.stacks = static_cast<char*>(malloc(kStack * 1024));
  e.finished.assign(threads, 0);
  e.warps.assign((threads + 31) / 32, Meeting());
  e.slots.assign(threads + 32, 0);
  e.block = Meeting();
  e.error = 0;
  for (int i = 0; i < threads; ++i) {
    getcontext(&e.fibers[i]);
    e.fibers[i].uc_stack.ss_sp = e.stacks + kStack * i;
    e.fibers[i].uc_stack.ss_size = kStack;
    e.fibers[i].uc_link = &e.scheduler;
    makecontext(&e.fibers[i], emulator_fiber, 0);
  }
  for (bool running = true; running;) {
    running = false;
    e.progress = 0;
    for (e.current = 0; e.current < threads; ++e.current) {
      if (e.finished[e.current]) continue;
      threadIdx = dim3{unsigned(e.current), 0, 0};
      swapcontext(&e.scheduler, &e.fibers[e.current]);
      running |= !e.finished[e.current];
    }
    if (running && !e.progress && !e.error) e.error = EMULATOR_DEADLOCK;
  }
  return e.error;
}

static inline void __syncthreads() { emulator_meet(emulator.block, emulator.size); threadIdx.x = unsigned(emulator.current); }
template <class T> static T emulator_exchange(T v, int source) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  const int warp = emulator.current / 32;
  const int lanes = emulator.size - warp * 32 < 32 ? emulator.size - warp * 32 : 32;
  memcpy(&emulator.slots[emulator.current], &v, sizeof v);
  emulator_meet(emulator.warps[warp], lanes);
  T got;
  memcpy(&got, &emulator.slots[warp * 32 + source], sizeof got);
  emulator_meet(emulator.warps[warp], lanes);
  threadIdx.x = unsigned(emulator.current);
  return got;
}
template <class T> static T __shfl_xor_sync(unsigned, T v, int step) { return emulator_exchange(v, (emulator.current % 32) ^ step); }
template <class T> static T __shfl_sync(unsigned, T v, int lane, int width = 32) {
  return emulator_exchange(v, emulator.current % 32 / width * width + lane);
}
template <class T> static T __shfl_up_sync(unsigned, T v, int step, int width = 32) {
  const int lane = emulator.current % 32;
  return emulator_exchange(v, lane % width >= step ? lane - step : lane);
}

static inline void __trap() { emulator_stop(EMULATOR_TRAP); }
template <class T> static void emulator_check(const T* p) {
  if (uintptr_t(p) % sizeof(T)) emulator_stop(EMULATOR_MISALIGNED);
}
template <class T> static T __ldg(const T* p) {
  emulator_check(p);
  return *p;
}

static inline uint32_t __umulhi(uint32_t a, uint32_t b) { return uint32_t((uint64_t(a) * b) >> 32); }
static inline float __uint_as_float(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static inline uint32_t __float_as_uint(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline float __frcp_rn(float a) { return 1.0f / a; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dsub_rn(double a, double b) { return a - b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline double __dsqrt_rn(double a) { return sqrt(a); }
static inline float rsqrtf(float a) { return 1.0f / sqrtf(a); }
static inline double rsqrt(double a) { return 1.0 / sqrt(a); }

/* In place of the inline PTX of forge_math_cuda.h. */
static inline uint16_t emulated_to_bf16(float v) {
  const uint32_t u = __float_as_uint(v);
  return uint16_t(v != v ? 0x7fffu : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
static inline uint16_t emulated_to_f16(float v) {
  const _Float16 half = _Float16(v);
  uint16_t bits;
  memcpy(&bits, &half, sizeof bits);
  return bits;
}
static inline float emulated_from_f16(uint16_t bits) {
  _Float16 half;
  memcpy(&half, &bits, sizeof half);
  return float(half);
}

/* In place of the launch. */
template <class Args> struct EmulatedCall { void (*kernel)(Args); const Args* args; };
template <class Args> static void emulator_call(void* call) {
  const EmulatedCall<Args>* c = static_cast<const EmulatedCall<Args>*>(call);
  c->kernel(*c->args);
}
template <class Args> static int forge_enqueue(void (*kernel)(Args), int64_t blocks, int threads, const Args& args, void*) {
  EmulatedCall<Args> call{kernel, &args};
  emulator.run = emulator_call<Args>;
  emulator.argument = &call;
  for (int64_t b = 0; b < blocks; ++b) {
    blockIdx = dim3{unsigned(b), 0, 0};
    if (const int error = emulator_block(threads)) return error;
  }
  return FORGE_OK;
}
#endif
