/* The CUDA half of forge_math.h: the accurate library functions, additions and products that the compiler may not
 * fuse (rounding points are eager's), vector loads and stores, and reductions and scans over the threads of a row.
 * Every reduction has a fixed order, so results do not vary from run to run. */
#ifndef FORGE_MATH_CUDA_H
#define FORGE_MATH_CUDA_H
#include "forge.h"

FORGE_INLINE float forge_as_float(uint32_t bits) { return __uint_as_float(bits); }
FORGE_INLINE uint32_t forge_as_bits(float v) { return __float_as_uint(v); }

/* ---- conversions, round to nearest even ---------------------------------------------------------------------------- */

#ifdef FORGE_EMULATED /* tests run kernels on the CPU, where there is no PTX */
FORGE_INLINE uint16_t forge_to_bf16(float v) { return emulated_to_bf16(v); }
FORGE_INLINE float forge_round_bf16(float v) { return forge_as_float(uint32_t(emulated_to_bf16(v)) << 16); }
FORGE_INLINE uint16_t forge_to_f16(float v) { return emulated_to_f16(v); }
FORGE_INLINE float forge_from_f16(uint16_t bits) { return emulated_from_f16(bits); }
FORGE_INLINE float forge_inverse(float v) { return 1.0f / v; }
#else
/* The instruction that converts two floats is eight times as fast as the one for a single float (Hopper), so it is the one
 * that is used, with a zero for the other; a bfloat16 in the upper half is a float already. */
FORGE_INLINE uint32_t forge_bf16_pair(float high, float low) {
  uint32_t bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
FORGE_INLINE uint16_t forge_to_bf16(float v) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  return uint16_t(forge_bf16_pair(0.0f, v));
#else
  const uint32_t u = __float_as_uint(v);
  return uint16_t(v != v ? 0x7fffu : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
#endif
}
FORGE_INLINE float forge_round_bf16(float v) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  return __uint_as_float(forge_bf16_pair(v, 0.0f));
#else
  return __uint_as_float(uint32_t(forge_to_bf16(v)) << 16);
#endif
}
FORGE_INLINE uint16_t forge_to_f16(float v) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  uint32_t bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(0.0f), "f"(v));
  return uint16_t(bits);
#else
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v));
  return bits;
#endif
}
/* 1 / v within one unit in the last place, denormals included: no branch, where a division has one for every element. */
FORGE_INLINE float forge_inverse(float v) {
  float inverse;
  asm("rcp.approx.f32 %0, %1;" : "=f"(inverse) : "f"(v));
  return inverse;
}
FORGE_INLINE float forge_from_f16(uint16_t bits) {
  float v;
  asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(bits));
  return v;
}
#endif
FORGE_INLINE float forge_round_f16(float v) { return forge_from_f16(forge_to_f16(v)); }
FORGE_INLINE forge_f16 forge_f16_exact(float v) { return forge_f16{forge_to_f16(v)}; }

/* ---- arithmetic ------------------------------------------------------------------------------------------------------ */

FORGE_INLINE float forge_add(float a, float b) { return __fadd_rn(a, b); }
FORGE_INLINE float forge_sub(float a, float b) { return __fsub_rn(a, b); }
FORGE_INLINE float forge_mul(float a, float b) { return __fmul_rn(a, b); }
FORGE_INLINE float forge_div(float a, float b) { return __fdiv_rn(a, b); }
FORGE_INLINE float forge_fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
FORGE_INLINE float forge_sqrt(float a) { return __fsqrt_rn(a); }
FORGE_INLINE double forge_add(double a, double b) { return __dadd_rn(a, b); }
FORGE_INLINE double forge_sub(double a, double b) { return __dsub_rn(a, b); }
FORGE_INLINE double forge_mul(double a, double b) { return __dmul_rn(a, b); }
FORGE_INLINE double forge_div(double a, double b) { return __ddiv_rn(a, b); }
FORGE_INLINE double forge_fma(double a, double b, double c) { return __fma_rn(a, b, c); }
FORGE_INLINE double forge_sqrt(double a) { return __dsqrt_rn(a); }
FORGE_INLINE double forge_inverse(double a) { return 1.0 / a; }

#define FORGE_CUDA_LIBRARY(T, F)                                                               \
  FORGE_INLINE T forge_abs(T a) { return fabs##F(a); }                                         \
  FORGE_INLINE T forge_copysign(T a, T b) { return copysign##F(a, b); }                        \
  FORGE_INLINE T forge_rsqrt(T a) { return rsqrt##F(a); }                                      \
  FORGE_INLINE T forge_floor(T a) { return floor##F(a); }                                      \
  FORGE_INLINE T forge_ceil(T a) { return ceil##F(a); }                                        \
  FORGE_INLINE T forge_trunc(T a) { return trunc##F(a); }                                      \
  FORGE_INLINE T forge_round(T a) { return rint##F(a); }                                       \
  FORGE_INLINE T forge_fmod(T a, T b) { return fmod##F(a, b); }                                \
  FORGE_INLINE T forge_pow(T a, T b) { return pow##F(a, b); }                                  \
  FORGE_INLINE T forge_exp(T a) { return exp##F(a); }                                          \
  FORGE_INLINE T forge_exp2(T a) { return exp2##F(a); }                                        \
  FORGE_INLINE T forge_expm1(T a) { return expm1##F(a); }                                      \
  FORGE_INLINE T forge_log(T a) { return log##F(a); }                                          \
  FORGE_INLINE T forge_log2(T a) { return log2##F(a); }                                        \
  FORGE_INLINE T forge_log10(T a) { return log10##F(a); }                                      \
  FORGE_INLINE T forge_log1p(T a) { return log1p##F(a); }                                      \
  FORGE_INLINE T forge_sin(T a) { return sin##F(a); }                                          \
  FORGE_INLINE T forge_cos(T a) { return cos##F(a); }                                          \
  FORGE_INLINE T forge_tan(T a) { return tan##F(a); }                                          \
  FORGE_INLINE T forge_tanh(T a) { return tanh##F(a); }                                        \
  FORGE_INLINE T forge_sinh(T a) { return sinh##F(a); }                                        \
  FORGE_INLINE T forge_cosh(T a) { return cosh##F(a); }                                        \
  FORGE_INLINE T forge_asin(T a) { return asin##F(a); }                                        \
  FORGE_INLINE T forge_acos(T a) { return acos##F(a); }                                        \
  FORGE_INLINE T forge_atan(T a) { return atan##F(a); }                                        \
  FORGE_INLINE T forge_atan2(T a, T b) { return atan2##F(a, b); }                              \
  FORGE_INLINE T forge_erf(T a) { return erf##F(a); }                                          \
  FORGE_INLINE T forge_erfc(T a) { return erfc##F(a); }
FORGE_CUDA_LIBRARY(float, f)
FORGE_CUDA_LIBRARY(double, )
#undef FORGE_CUDA_LIBRARY

/* One instruction from sm_80 on. */
FORGE_INLINE float forge_max(float a, float b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
#else
  return ((a > b) | (a != a)) ? a : b;
#endif
}
FORGE_INLINE float forge_min(float a, float b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
#else
  return ((a < b) | (a != a)) ? a : b;
#endif
}

/* A divisor that many elements share. One Newton step from a * inverse gives the correctly rounded quotient, in six
 * instructions and no branch; very large and very small divisors are first brought to the middle of the range. */
struct ForgeShared { float scale, divisor, inverse; };
FORGE_INLINE ForgeShared forge_share(float b) {
  const float size = fabsf(b);
  const float scale = size < 1e-30f ? 0x1p64f : size > 1e30f ? 0x1p-64f : 1.0f;
  return ForgeShared{scale, b * scale, __frcp_rn(b * scale)};
}
FORGE_INLINE float forge_div(float a, const ForgeShared& b) {
  const float scaled = __fmul_rn(a, b.scale), q = __fmul_rn(scaled, b.inverse);
  const float better = __fmaf_rn(__fmaf_rn(-q, b.divisor, scaled), b.inverse, q);
  const float size = fabsf(q);
  return (size > 1e-30f) & (size < 1e38f) ? better : q; /* zeros, infinities and NaN are right in q */
}

/* ---- memory ------------------------------------------------------------------------------------------------------------ */

/* kWidth neighbouring elements, moved in accesses of up to 16 bytes; the address must be aligned to that. */
template <class T, int kWidth> struct alignas(sizeof(T) * kWidth < 16 ? sizeof(T) * kWidth : 16) ForgeVec { T at[kWidth]; };

template <int kBytes> struct ForgeWord;
template <> struct ForgeWord<1> { typedef uint8_t type; };
template <> struct ForgeWord<2> { typedef uint16_t type; };
template <> struct ForgeWord<4> { typedef uint32_t type; };
template <> struct ForgeWord<8> { typedef uint2 type; };
template <> struct ForgeWord<16> { typedef uint4 type; };

/* Inputs are never written while a kernel runs, so they go through the read-only path. */
template <int kWidth, class T> FORGE_INLINE ForgeVec<T, kWidth> forge_load(const T* from) {
  typedef ForgeVec<T, kWidth> Vec;
  typedef typename ForgeWord<int(alignof(Vec))>::type Word;
  Vec v;
#pragma unroll
  for (int k = 0; k < int(sizeof(Vec) / sizeof(Word)); ++k) {
    const Word word = __ldg(reinterpret_cast<const Word*>(from) + k);
    memcpy(reinterpret_cast<char*>(&v) + k * sizeof(Word), &word, sizeof(Word));
  }
  return v;
}
template <int kWidth, class T> FORGE_INLINE void forge_store(T* to, const ForgeVec<T, kWidth>& v) {
  typedef ForgeVec<T, kWidth> Vec;
  typedef typename ForgeWord<int(alignof(Vec))>::type Word;
#pragma unroll
  for (int k = 0; k < int(sizeof(Vec) / sizeof(Word)); ++k) {
    Word word;
    memcpy(&word, reinterpret_cast<const char*>(&v) + k * sizeof(Word), sizeof(Word));
    reinterpret_cast<Word*>(to)[k] = word;
  }
}
/* The first count elements only: the end of a tensor whose size is no multiple of kWidth. */
template <int kWidth, class T> FORGE_INLINE ForgeVec<T, kWidth> forge_load(const T* from, int count) {
  if (count >= kWidth) return forge_load<kWidth>(from);
  ForgeVec<T, kWidth> v = {};
#pragma unroll
  for (int k = 0; k < kWidth; ++k)
    if (k < count) v.at[k] = forge_load<1>(from + k).at[0];
  return v;
}
template <int kWidth, class T> FORGE_INLINE void forge_store(T* to, const ForgeVec<T, kWidth>& v, int count) {
  if (count >= kWidth) return forge_store<kWidth>(to, v);
#pragma unroll
  for (int k = 0; k < kWidth; ++k)
    if (k < count) to[k] = v.at[k];
}
template <class T> FORGE_INLINE T forge_load_one(const T* from) { return forge_load<1>(from).at[0]; }

static inline bool forge_aligned(const void* pointer, int64_t bytes) { return uintptr_t(pointer) % uintptr_t(bytes) == 0; }

/* An index from data, wrapped from the end where that is allowed; outside the range the launch is aborted, as in eager. */
FORGE_INLINE int64_t forge_checked(int64_t index, int64_t size, bool wrap) {
  if (wrap & (index < 0)) index += size;
  if (uint64_t(index) >= uint64_t(size)) __trap();
  return index;
}

/* ---- division by a number known at launch ------------------------------------------------------------------------------ */

/* n / divisor for 0 <= n < 2^31 as one multiplication and a shift. */
struct ForgeDivisor { uint32_t factor, shift; };
static inline ForgeDivisor forge_divisor(int64_t d) {
  if (d <= 0) return ForgeDivisor{0, 0};
  uint32_t shift = 0;
  while ((int64_t(1) << shift) < d) ++shift;
  const uint64_t factor = (uint64_t(1) << 32) * ((uint64_t(1) << shift) - uint64_t(d)) / uint64_t(d) + 1;
  return ForgeDivisor{uint32_t(factor), shift};
}
FORGE_INLINE int32_t forge_quotient(int32_t n, const ForgeDivisor& d) {
  return int32_t((__umulhi(uint32_t(n), d.factor) + uint32_t(n)) >> d.shift);
}

/* ---- folds over the kThreads threads that share a row --------------------------------------------------------------------- */

struct ForgeSum { template <class T> static __device__ __forceinline__ T of(T a, T b) { return forge_add(a, b); } };
struct ForgeProd { template <class T> static __device__ __forceinline__ T of(T a, T b) { return forge_mul(a, b); } };
struct ForgeMax { template <class T> static __device__ __forceinline__ T of(T a, T b) { return forge_max(a, b); } };
struct ForgeMin { template <class T> static __device__ __forceinline__ T of(T a, T b) { return forge_min(a, b); } };

/* Lanes of one warp that work on the same row; a row of more threads than a warp takes whole warps. */
template <int kThreads> struct ForgeTeam {
  static constexpr int kLanes = kThreads < 32 ? kThreads : 32;
  static constexpr int kWarps = kThreads / kLanes;
};

/* Butterfly: every lane ends with the same bits, since each step adds the same two numbers. */
template <int kThreads, class Fold, class T> FORGE_INLINE T forge_fold_lanes(T v) {
#pragma unroll
  for (int step = ForgeTeam<kThreads>::kLanes / 2; step > 0; step /= 2) v = Fold::of(v, __shfl_xor_sync(~0u, v, step));
  return v;
}
/* The same over one value per warp, left in shared memory. */
template <int kThreads, class Fold, class T> FORGE_INLINE T forge_fold_warps(const T* of_warp, T identity) {
  constexpr int kWarps = ForgeTeam<kThreads>::kWarps;
  const int lane = threadIdx.x % 32;
  T v = lane < kWarps ? of_warp[lane] : identity;
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    if (step < kWarps) v = Fold::of(v, __shfl_xor_sync(~0u, v, step));
  return __shfl_sync(~0u, v, 0);
}

struct ForgeArgMax {
  template <class T, class I> static __device__ __forceinline__ bool better(T v, I i, T w, I k) { return forge_arg_above(v, i, w, k); }
};
struct ForgeArgMin {
  template <class T, class I> static __device__ __forceinline__ bool better(T v, I i, T w, I k) { return forge_arg_below(v, i, w, k); }
};
template <class Order, class T, class I> FORGE_INLINE void forge_take(T& best, I& at, T v, I i) {
  const bool take = Order::better(v, i, best, at);
  best = take ? v : best;
  at = take ? i : at;
}
template <int kThreads, class Order, class T, class I> FORGE_INLINE void forge_arg_lanes(T& best, I& at) {
#pragma unroll
  for (int step = ForgeTeam<kThreads>::kLanes / 2; step > 0; step /= 2) {
    const T v = __shfl_xor_sync(~0u, best, step);
    const I i = __shfl_xor_sync(~0u, at, step);
    forge_take<Order>(best, at, v, i);
  }
}
template <int kThreads, class Order, class T, class I>
FORGE_INLINE void forge_arg_warps(const T* best_of_warp, const I* at_of_warp, T& best, I& at) {
  best = best_of_warp[0];
  at = at_of_warp[0];
#pragma unroll
  for (int warp = 1; warp < ForgeTeam<kThreads>::kWarps; ++warp) forge_take<Order>(best, at, best_of_warp[warp], at_of_warp[warp]);
}

/* In: totals[j] is the fold of this thread's j-th vector. Out: the fold of everything before that vector, starting from
 * carry, which becomes the fold of everything so far. Vector j of thread t follows vector j of thread t - 1, and
 * vector j + 1 of thread 0 follows vector j of the last thread. of_warp: shared, one value per vector and warp. */
template <int kThreads, class Fold, int kVectors, class T>
FORGE_INLINE void forge_scan_threads(T (&totals)[kVectors], T identity, T& carry, T* of_warp) {
  constexpr int kLanes = ForgeTeam<kThreads>::kLanes, kWarps = ForgeTeam<kThreads>::kWarps;
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x % kThreads / kLanes;
  T whole[kVectors];
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    T v = totals[j];
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2) {
      const T before = __shfl_up_sync(~0u, v, step, kLanes);
      if (lane >= step) v = Fold::of(before, v);
    }
    const T before = __shfl_up_sync(~0u, v, 1, kLanes);
    totals[j] = lane ? before : identity;
    whole[j] = __shfl_sync(~0u, v, kLanes - 1, kLanes);
    if (kWarps > 1 && lane == 0) of_warp[j * kWarps + warp] = whole[j];
  }
  if (kWarps > 1) __syncthreads();
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    T before = carry;
    if (kWarps > 1) {
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        if (w == warp) before = carry;
        carry = Fold::of(carry, of_warp[j * kWarps + w]);
      }
    } else {
      carry = Fold::of(carry, whole[j]);
    }
    totals[j] = Fold::of(before, totals[j]);
  }
  if (kWarps > 1) __syncthreads(); /* of_warp may be written again for the next tile */
}

#ifndef FORGE_EMULATED
/* ---- launching --------------------------------------------------------------------------------------------------------------- */

/* The launch's own status is returned; the thread's last error may be somebody else's and is left for them. */
template <class Args>
static inline int forge_enqueue(void (*kernel)(Args), int64_t blocks, int threads, const Args& args, void* stream) {
  if (blocks <= 0) return FORGE_OK;
  if (blocks > 0x7fffffff) return FORGE_UNSUPPORTED;
  void* values[] = {const_cast<Args*>(&args)};
  const cudaError_t status = cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(unsigned(blocks)), dim3(unsigned(threads)),
                                              values, 0, static_cast<cudaStream_t>(stream));
  if (status == cudaSuccess) return FORGE_OK;
  (void)cudaGetLastError(); /* a refused launch leaves its error behind: take it along */
  return FORGE_CUDA_ERROR + int(status);
}
#endif

#endif
