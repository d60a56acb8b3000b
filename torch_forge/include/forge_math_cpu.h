/* The CPU half of forge_math.h. The float functions have no branches and no calls, so that the compiler's
 * vectoriser can run them on 8 or 16 lanes: range reduction with a fused multiply-add, one polynomial (minimax fits
 * made for this file), both sides of a choice computed and one selected. Error at most 2 units in the last place
 * over every float, NaN, infinities and denormals included; tests/e2e/test_templates_cpu.py sweeps them.
 * Compile with -ffp-contract=off: rounding points are then eager's, and every fused step is written as one. */
#ifndef FORGE_MATH_CPU_H
#define FORGE_MATH_CPU_H
#include <stdlib.h>

FORGE_INLINE float forge_as_float(uint32_t bits) {
  float v;
  memcpy(&v, &bits, sizeof v);
  return v;
}
FORGE_INLINE uint32_t forge_as_bits(float v) {
  uint32_t bits;
  memcpy(&bits, &v, sizeof bits);
  return bits;
}

/* a * b + c: fused where the machine can, since a library call per lane would be far slower than it is more exact. */
FORGE_INLINE float forge_mad(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

FORGE_INLINE float forge_inverse(float a) { return 1.0f / a; }
FORGE_INLINE double forge_inverse(double a) { return 1.0 / a; }

/* ---- conversions, round to nearest even ---------------------------------------------------------------------------- */

FORGE_INLINE uint16_t forge_to_bf16(float v) {
  const uint32_t u = forge_as_bits(v);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return uint16_t(v != v ? 0x7fc0u : rounded);
}
FORGE_INLINE float forge_round_bf16(float v) { return forge_as_float(uint32_t(forge_to_bf16(v)) << 16); }

/* To 11 significant bits, or to a multiple of 2^-24 below the smallest normal half; the result is a float. */
FORGE_INLINE float forge_round_f16(float v) {
  const float a = __builtin_fabsf(v);
  const uint32_t u = forge_as_bits(a);
  const float normal = forge_as_float((u + 0xfffu + ((u >> 13) & 1u)) & ~0x1fffu);
  const float small = (a + 0.5f) - 0.5f; /* the ulp of 0.5f is 2^-24, so the adder does the rounding */
  float r = a < 0x1p-14f ? small : normal;
  r = r >= 65536.0f ? FORGE_INF : r;
  r = a != a ? a : r;
  return __builtin_copysignf(r, v);
}

/* The bits of a float that is a half already. Scaled by 2^-112 both exponents agree, half's denormals included. */
FORGE_INLINE uint16_t forge_f16_bits(float v) {
  const uint32_t sign = (forge_as_bits(v) >> 16) & 0x8000u;
  const float a = __builtin_fabsf(v);
  const float scaled = a >= 65536.0f ? forge_as_float(0x7c00u << 13) : a * 0x1p-112f;
  const float kept = a != a ? forge_as_float(0x7e00u << 13) : scaled;
  return uint16_t((forge_as_bits(kept) >> 13) | sign);
}
/* Both at once. The choices are made between floats that only carry bits: the compiler would narrow a choice between
 * integers to 16 bits before making it, and spend more on packing than on converting. */
FORGE_INLINE uint16_t forge_to_f16(float v) {
  const uint32_t sign = (forge_as_bits(v) >> 16) & 0x8000u;
  const float a = __builtin_fabsf(v);
  const uint32_t u = forge_as_bits(a);
  const float normal = forge_as_float((u + 0xc8000fffu + ((u >> 13) & 1u)) >> 13);
  const float small = forge_as_float(forge_as_bits(a + 0.5f) - 0x3f000000u);
  float h = a < 0x1p-14f ? small : normal;
  h = a >= 65520.0f ? forge_as_float(0x7c00u) : h;
  h = a != a ? forge_as_float(0x7e00u) : h;
  return uint16_t(forge_as_bits(h) | sign);
}

FORGE_INLINE float forge_from_f16(uint16_t h) {
  const uint32_t sign = (uint32_t(h) & 0x8000u) << 16;
  const int32_t a = int32_t((uint32_t(h) & 0x7fffu) << 13);
  const float normal = forge_as_float(uint32_t(a) + 0x38000000u);
  const float small = forge_as_float(uint32_t(a) + 0x38800000u) - 0x1p-14f;
  float v = a < 0x00800000 ? small : normal;
  v = a >= 0x0f800000 ? forge_as_float(uint32_t(a) + 0x70000000u) : v; /* infinities and NaN */
  return forge_as_float(forge_as_bits(v) | sign);
}
FORGE_INLINE forge_f16 forge_f16_exact(float v) { return forge_f16{forge_f16_bits(v)}; }

/* ---- arithmetic ------------------------------------------------------------------------------------------------------ */

#define FORGE_CPU_BASIC(T, F)                                                                  \
  FORGE_INLINE T forge_add(T a, T b) { return a + b; }                                         \
  FORGE_INLINE T forge_sub(T a, T b) { return a - b; }                                         \
  FORGE_INLINE T forge_mul(T a, T b) { return a * b; }                                         \
  FORGE_INLINE T forge_div(T a, T b) { return a / b; }                                         \
  FORGE_INLINE T forge_abs(T a) { return __builtin_fabs##F(a); }                               \
  FORGE_INLINE T forge_copysign(T a, T b) { return __builtin_copysign##F(a, b); }              \
  FORGE_INLINE T forge_fma(T a, T b, T c) { return __builtin_fma##F(a, b, c); }                \
  FORGE_INLINE T forge_sqrt(T a) { return __builtin_sqrt##F(a); }                              \
  FORGE_INLINE T forge_rsqrt(T a) { return T(1) / __builtin_sqrt##F(a); }                      \
  FORGE_INLINE T forge_floor(T a) { return __builtin_floor##F(a); }                            \
  FORGE_INLINE T forge_ceil(T a) { return __builtin_ceil##F(a); }                              \
  FORGE_INLINE T forge_trunc(T a) { return __builtin_trunc##F(a); }                            \
  FORGE_INLINE T forge_round(T a) { return __builtin_rint##F(a); }                             \
  FORGE_INLINE T forge_fmod(T a, T b) { return __builtin_fmod##F(a, b); }                      \
  FORGE_INLINE T forge_pow(T a, T b) { return __builtin_pow##F(a, b); }                        \
  FORGE_INLINE T forge_sin(T a) { return __builtin_sin##F(a); }                                \
  FORGE_INLINE T forge_cos(T a) { return __builtin_cos##F(a); }                                \
  FORGE_INLINE T forge_tan(T a) { return __builtin_tan##F(a); }                                \
  FORGE_INLINE T forge_sinh(T a) { return __builtin_sinh##F(a); }                              \
  FORGE_INLINE T forge_cosh(T a) { return __builtin_cosh##F(a); }                              \
  FORGE_INLINE T forge_asin(T a) { return __builtin_asin##F(a); }                              \
  FORGE_INLINE T forge_acos(T a) { return __builtin_acos##F(a); }                              \
  FORGE_INLINE T forge_atan(T a) { return __builtin_atan##F(a); }                              \
  FORGE_INLINE T forge_atan2(T a, T b) { return __builtin_atan2##F(a, b); }                    \
  FORGE_INLINE T forge_erfc(T a) { return __builtin_erfc##F(a); }
FORGE_CPU_BASIC(float, f)
FORGE_CPU_BASIC(double, )
#undef FORGE_CPU_BASIC

/* The hardware's own max, which returns b if either is NaN, and then a where that is the NaN. */
FORGE_INLINE float forge_max(float a, float b) {
  const float larger = a > b ? a : b;
  return a != a ? a : larger;
}
FORGE_INLINE float forge_min(float a, float b) {
  const float smaller = a < b ? a : b;
  return a != a ? a : smaller;
}

FORGE_INLINE double forge_exp(double a) { return __builtin_exp(a); }
FORGE_INLINE double forge_exp2(double a) { return __builtin_exp2(a); }
FORGE_INLINE double forge_expm1(double a) { return __builtin_expm1(a); }
FORGE_INLINE double forge_log(double a) { return __builtin_log(a); }
FORGE_INLINE double forge_log2(double a) { return __builtin_log2(a); }
FORGE_INLINE double forge_log10(double a) { return __builtin_log10(a); }
FORGE_INLINE double forge_log1p(double a) { return __builtin_log1p(a); }
FORGE_INLINE double forge_tanh(double a) { return __builtin_tanh(a); }
FORGE_INLINE double forge_erf(double a) { return __builtin_erf(a); }

/* ---- float transcendentals --------------------------------------------------------------------------------------------- */

/* Adding 1.5 * 2^23 leaves the nearest integer in the low mantissa bits. */
#define FORGE_SHIFTER 12582912.0f

/* p * 2^n for n in [-252, 254]; two factors, so that a denormal result is rounded once. */
FORGE_INLINE float forge_scale(float p, int32_t n) {
  const int32_t half = n >> 1;
  return p * forge_as_float(uint32_t(half + 127) << 23) * forge_as_float(uint32_t(n - half + 127) << 23);
}

/* x within [low, high], low negative and high positive; NaN becomes one of them. Compared as integers, whose min is one
 * operation: two bounds written as float comparisons become a tangle of branches before they are vectorised. */
FORGE_INLINE float forge_clamp(float x, float low, float high) {
  const int32_t u = int32_t(forge_as_bits(x)), most = int32_t(forge_as_bits(high));
  const uint32_t below = uint32_t(u < most ? u : most), least = forge_as_bits(low);
  return forge_as_float(below < least ? below : least);
}

/* x = n ln2 + r with |r| <= ln2 / 2; returns r. ln2 is split so that n times its head is exact. */
FORGE_INLINE float forge_exp_reduce(float x, int32_t* n) {
  const float shifted = forge_mad(x, 1.44269504f, FORGE_SHIFTER), whole = shifted - FORGE_SHIFTER;
  *n = int32_t(forge_as_bits(shifted) - 0x4b400000u);
  return forge_mad(whole, 2.12194440e-4f, forge_mad(whole, -0.693359375f, x));
}

/* e^r for |r| <= ln2 / 2. */
FORGE_INLINE float forge_exp_core(float r) {
  float q = 0x1.6a234ep-10f;
  q = forge_mad(q, r, 0x1.123a6cp-7f);
  q = forge_mad(q, r, 0x1.5558f4p-5f);
  q = forge_mad(q, r, 0x1.555490p-3f);
  q = forge_mad(q, r, 0x1.fffffcp-2f);
  return forge_mad(r * r, q, r) + 1.0f;
}

FORGE_INLINE float forge_exp(float a) {
  int32_t n;
  const float r = forge_exp_reduce(forge_clamp(a, -104.0f, 89.0f), &n);
  const float y = forge_scale(forge_exp_core(r), n);
  return a != a ? a : y;
}

/* The same for |x| < 87, where neither end of the exponent range is met: half the work. */
FORGE_INLINE float forge_exp_inner(float x) {
  int32_t n;
  const float r = forge_exp_reduce(x, &n);
  return forge_as_float(forge_as_bits(forge_exp_core(r)) + (uint32_t(n) << 23));
}

FORGE_INLINE float forge_exp2(float a) {
  const float x = forge_clamp(a, -151.0f, 129.0f), shifted = x + FORGE_SHIFTER, r = x - (shifted - FORGE_SHIFTER);
  float q = 0x1.41fa9cp-13f;
  q = forge_mad(q, r, 0x1.5f4010p-10f);
  q = forge_mad(q, r, 0x1.3b2d52p-7f);
  q = forge_mad(q, r, 0x1.c6aee6p-5f);
  q = forge_mad(q, r, 0x1.ebfbdcp-3f);
  q = forge_mad(q, r, 0x1.62e430p-1f);
  const float y = forge_scale(forge_mad(q, r, 1.0f), int32_t(forge_as_bits(shifted) - 0x4b400000u));
  return a != a ? a : y;
}

FORGE_INLINE float forge_expm1(float a) {
  int32_t n;
  const float r = forge_exp_reduce(forge_clamp(a, -30.0f, 89.0f), &n);
  float q = 0x1.a032c8p-13f;
  q = forge_mad(q, r, 0x1.6d7298p-10f);
  q = forge_mad(q, r, 0x1.11118ap-7f);
  q = forge_mad(q, r, 0x1.5554b0p-5f);
  q = forge_mad(q, r, 0x1.555554p-3f);
  q = forge_mad(q, r, 0.5f);
  const float p = forge_mad(r * r, q, r); /* e^r - 1 */
  const float half = forge_as_float(uint32_t(n - 1 + 127) << 23);
  const float y = 2.0f * forge_mad(half, p, half - 0.5f);
  return (forge_abs(a) < 1e-8f) | (a != a) ? a : y;
}

/* x = 2^e m with m in [sqrt(1/2), sqrt(2)); returns m - 1. x positive and finite; denormals are scaled first. */
FORGE_INLINE float forge_log_reduce(float x, float* e) {
  const bool tiny = x < 0x1p-126f;
  const uint32_t u = forge_as_bits(tiny ? x * 0x1p23f : x);
  const int32_t k = int32_t(u - 0x3f3504f3u) >> 23;
  *e = float(k - (tiny ? 23 : 0));
  return forge_as_float(u - (uint32_t(k) << 23)) - 1.0f;
}

/* log(1 + f) - f for f in [sqrt(1/2) - 1, sqrt(2) - 1]. */
FORGE_INLINE float forge_log_tail(float f) {
  float q = 0x1.1456ecp-4f;
  q = forge_mad(q, f, -0x1.de50ecp-4f);
  q = forge_mad(q, f, 0x1.e6fbe8p-4f);
  q = forge_mad(q, f, -0x1.fc1fb0p-4f);
  q = forge_mad(q, f, 0x1.23368ap-3f);
  q = forge_mad(q, f, -0x1.555c54p-3f);
  q = forge_mad(q, f, 0x1.99a4c0p-3f);
  q = forge_mad(q, f, -0x1.000006p-2f);
  q = forge_mad(q, f, 0x1.555548p-2f);
  return forge_mad(f * f, -0.5f, f * f * (f * q));
}

/* What every logarithm is at 0, below 0, at infinity and at NaN. */
FORGE_INLINE float forge_log_edges(float x, float y) {
  y = x == 0.0f ? -FORGE_INF : y;
  y = x == FORGE_INF ? x : y;
  return (x < 0.0f) | (x != x) ? FORGE_NAN : y;
}

FORGE_INLINE float forge_log(float x) {
  float e;
  const float f = forge_log_reduce(x, &e);
  const float tail = forge_mad(e, -2.12194440e-4f, forge_log_tail(f));
  return forge_log_edges(x, forge_mad(e, 0.693359375f, f + tail));
}

/* f * c + tail * c with c split into head and rest, so that the product does not lose what the tail keeps. */
FORGE_INLINE float forge_log2(float x) {
  float e;
  const float f = forge_log_reduce(x, &e), tail = forge_log_tail(f);
  const float low = forge_mad(tail, 1.44269504f, f * 1.92596303e-8f);
  return forge_log_edges(x, e + forge_mad(f, 1.44269502f, low));
}

FORGE_INLINE float forge_log10(float x) {
  float e;
  const float f = forge_log_reduce(x, &e), tail = forge_log_tail(f);
  const float low = forge_mad(tail, 0.434294482f, forge_mad(f, -1.00980868e-8f, e * -2.80822e-9f));
  return forge_log_edges(x, forge_mad(e, 0.301030000f, forge_mad(f, 0.434294492f, low)));
}

FORGE_INLINE float forge_log1p(float x) {
  const float u = 1.0f + x;
  const float lost = x > 1.0f ? 1.0f - (u - x) : x - (u - 1.0f); /* what rounding took from 1 + x */
  float e;
  const float f = forge_log_reduce(u, &e);
  const float tail = forge_mad(e, -2.12194440e-4f, forge_log_tail(f) + lost / u);
  const float y = forge_log_edges(u, forge_mad(e, 0.693359375f, f + tail));
  return forge_abs(x) < 1e-8f ? x : y;
}

FORGE_INLINE float forge_tanh(float a) {
  const float y = forge_abs(a), z = y * y;
  float q = -0x1.6970f0p-8f;
  q = forge_mad(q, z, 0x1.4f5eeep-6f);
  q = forge_mad(q, z, -0x1.b7cff0p-5f);
  q = forge_mad(q, z, 0x1.1103f2p-3f);
  q = forge_mad(q, z, -0x1.555524p-2f);
  const float small = forge_mad(y * z, q, y);
  const float large = 1.0f - 2.0f / (forge_exp_inner(y > 10.0f ? 20.0f : 2.0f * y) + 1.0f);
  return forge_copysign(y >= 0.65f ? large : small, a);
}

/* Near zero x P(x^2); beyond, 1 - e^L(x) with L the logarithm of erfc on [0.9, 4], where no edge of exp is met. */
FORGE_INLINE float forge_erf(float a) {
  const float y = forge_abs(a), z = y * y;
  float p = 0x1.5cd4aap-14f;
  p = forge_mad(p, z, -0x1.aa3f2cp-11f);
  p = forge_mad(p, z, 0x1.54c7f4p-8f);
  p = forge_mad(p, z, -0x1.b80e90p-6f);
  p = forge_mad(p, z, 0x1.ce2e0ap-4f);
  p = forge_mad(p, z, -0x1.812742p-2f);
  p = forge_mad(p, z, 0.128379161f); /* 2 / sqrt(pi) - 1 */
  const float t = y > 4.0f ? 4.0f : y;
  float q = 0x1.9fb2eep-13f;
  q = forge_mad(q, t, -0x1.91cd1ap-9f);
  q = forge_mad(q, t, 0x1.6d9cf0p-6f);
  q = forge_mad(q, t, -0x1.aa732cp-4f);
  q = forge_mad(q, t, -0x1.4621b8p-1f);
  q = forge_mad(q, t, -0x1.20b752p+0f);
  q = forge_mad(q, t, -0x1.5d0c4ep-13f);
  const float large = 1.0f - forge_exp_inner(q);
  return forge_copysign(y >= 0.93f ? large : forge_mad(y, p, y), a);
}

/* ---- memory ---------------------------------------------------------------------------------------------------------------- */

/* Copies count elements past the caches: a result larger than the last-level cache would only evict its own
 * input, and an ordinary store first reads the line it is about to overwrite. */
template <class T> static inline void forge_stream(T* to, const T* from, int64_t count) {
#if defined(__AVX__) && defined(__GNUC__)
  typedef long long Line __attribute__((vector_size(32)));
  int64_t i = 0;
  for (; i < count && (uintptr_t(to + i) & 31); ++i) to[i] = from[i];
  constexpr int64_t step = 32 / int64_t(sizeof(T));
  for (; i + step <= count; i += step) {
    Line line;
    memcpy(&line, from + i, sizeof line);
#ifdef __clang__
    __builtin_nontemporal_store(line, (Line*)(to + i));
#else
    __builtin_ia32_movntdq256((Line*)(to + i), line);
#endif
  }
  for (; i < count; ++i) to[i] = from[i];
#else
  memcpy(to, from, size_t(count) * sizeof(T));
#endif
}
static inline void forge_stream_end() {
#ifdef __SSE__
  __builtin_ia32_sfence(); /* streamed stores are weakly ordered */
#endif
}

/* An index from data, wrapped from the end where that is allowed; outside the range failed is set and 0 returned. */
FORGE_INLINE int64_t forge_checked(int64_t index, int64_t size, bool wrap, int* failed) {
  index = wrap & (index < 0) ? index + size : index;
  const bool bad = uint64_t(index) >= uint64_t(size);
  *failed |= bad;
  return bad ? 0 : index;
}

/* Folds count lanes, a power of two, pairwise; the lanes are overwritten. */
#define FORGE_CPU_FOLD(NAME, EXPRESSION)                                                       \
  template <class T> FORGE_INLINE T forge_fold_##NAME(T* lanes, int count) {                   \
    for (int half = count / 2; half > 0; half /= 2)                                            \
      for (int i = 0; i < half; ++i) {                                                         \
        const T a = lanes[i], b = lanes[i + half];                                             \
        lanes[i] = EXPRESSION;                                                                 \
      }                                                                                        \
    return lanes[0];                                                                           \
  }
FORGE_CPU_FOLD(sum, forge_add(a, b))
FORGE_CPU_FOLD(prod, forge_mul(a, b))
FORGE_CPU_FOLD(max, forge_max(a, b))
FORGE_CPU_FOLD(min, forge_min(a, b))
#undef FORGE_CPU_FOLD

/* The earlier of stop and a place where the row must be cut, if that place lies ahead. */
FORGE_INLINE int64_t forge_cut(int64_t from, int64_t place, int64_t stop) { return (place > from) & (place < stop) ? place : stop; }

/* How many threads are worth starting: one wake-up costs what about 20000 simple operations cost. */
static inline int forge_team(int64_t threads, int64_t tasks, int64_t operations) {
  const int64_t worth = operations / 20000;
  int64_t team = threads < tasks ? threads : tasks;
  team = worth < team ? worth : team;
  return team > 1 ? int(team) : 1;
}

/* One thread's scratch memory, 64-byte aligned, freed with its scope. */
template <class T> struct ForgeScratch {
  T* data;
  explicit ForgeScratch(int64_t count) : data((T*)aligned_alloc(64, (size_t(count) * sizeof(T) + 127) & ~size_t(63))) {}
  ~ForgeScratch() { free(data); }
  ForgeScratch(const ForgeScratch&) = delete;
  ForgeScratch& operator=(const ForgeScratch&) = delete;
};

#endif
