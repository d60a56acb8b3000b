/* Scalar arithmetic of the templates: storage types, conversions, and every function a program may call.
 *
 * One idea: a value is held in a register type (float for the 16-bit floats, int32_t for the small integers) and
 * each function is overloaded on it, so a template prints the same expression for every element type and both
 * backends. Nothing here trades accuracy for speed: conversions round to nearest even, max and min propagate NaN,
 * integers wrap around. forge_math_cpu.h and forge_math_cuda.h hold what differs between the backends. */
#ifndef FORGE_MATH_H
#define FORGE_MATH_H
#include <math.h>
#include <stdint.h>
#include <string.h>

struct forge_bf16 { uint16_t bits; };
struct forge_f16 { uint16_t bits; };

#define FORGE_INF (__builtin_huge_valf())
#define FORGE_NAN (__builtin_nanf(""))

#if defined(__CUDACC__) || defined(FORGE_EMULATED)
#include <cuda_runtime.h>
#define FORGE_INLINE static __device__ __forceinline__
#else
#define FORGE_INLINE static inline __attribute__((always_inline))
#endif

/* ---- choice; NaN wins in max and min -------------------------------------------------------------------------- */

FORGE_INLINE double forge_max(double a, double b) { return ((a > b) | (a != a)) ? a : b; }
FORGE_INLINE double forge_min(double a, double b) { return ((a < b) | (a != a)) ? a : b; }
FORGE_INLINE int64_t forge_max(int64_t a, int64_t b) { return a > b ? a : b; }
FORGE_INLINE int64_t forge_min(int64_t a, int64_t b) { return a < b ? a : b; }
FORGE_INLINE int32_t forge_max(int32_t a, int32_t b) { return a > b ? a : b; }
FORGE_INLINE int32_t forge_min(int32_t a, int32_t b) { return a < b ? a : b; }
FORGE_INLINE bool forge_max(bool a, bool b) { return a | b; }
FORGE_INLINE bool forge_min(bool a, bool b) { return a & b; }

/* ---- integers wrap around ----------------------------------------------------------------------------------------- */

FORGE_INLINE int64_t forge_add(int64_t a, int64_t b) { return int64_t(uint64_t(a) + uint64_t(b)); }
FORGE_INLINE int64_t forge_sub(int64_t a, int64_t b) { return int64_t(uint64_t(a) - uint64_t(b)); }
FORGE_INLINE int64_t forge_mul(int64_t a, int64_t b) { return int64_t(uint64_t(a) * uint64_t(b)); }
FORGE_INLINE int32_t forge_add(int32_t a, int32_t b) { return int32_t(uint32_t(a) + uint32_t(b)); }
FORGE_INLINE int32_t forge_sub(int32_t a, int32_t b) { return int32_t(uint32_t(a) - uint32_t(b)); }
FORGE_INLINE int32_t forge_mul(int32_t a, int32_t b) { return int32_t(uint32_t(a) * uint32_t(b)); }
FORGE_INLINE int64_t forge_neg(int64_t a) { return forge_sub(int64_t(0), a); }
FORGE_INLINE int32_t forge_neg(int32_t a) { return forge_sub(int32_t(0), a); }
FORGE_INLINE int64_t forge_abs(int64_t a) { return a < 0 ? forge_neg(a) : a; }
FORGE_INLINE int32_t forge_abs(int32_t a) { return a < 0 ? forge_neg(a) : a; }
FORGE_INLINE int64_t forge_square(int64_t a) { return forge_mul(a, a); }
FORGE_INLINE int32_t forge_square(int32_t a) { return forge_mul(a, a); }

/* ---- arg-reductions --------------------------------------------------------------------------------------------- */

/* Whether candidate (v, i) replaces (best, at) in an argmax / argmin: NaN first, then the value, then the lower index. */
template <class T, class I> FORGE_INLINE bool forge_arg_above(T v, I i, T best, I at) {
  const bool nan = v != v, best_nan = best != best;
  return nan == best_nan ? ((!nan & (v > best)) | (((v == best) | nan) & (i < at))) : nan;
}
template <class T, class I> FORGE_INLINE bool forge_arg_below(T v, I i, T best, I at) {
  const bool nan = v != v, best_nan = best != best;
  return nan == best_nan ? ((!nan & (v < best)) | (((v == best) | nan) & (i < at))) : nan;
}

/* The same where candidates come in the order of their positions. */
template <class T> FORGE_INLINE bool forge_arg_rises(T v, T best) { return (v > best) | ((v != v) & (best == best)); }
template <class T> FORGE_INLINE bool forge_arg_falls(T v, T best) { return (v < best) | ((v != v) & (best == best)); }

/* The backends' templates see the overloads above: an unqualified call on a built-in type finds only earlier ones. */
#if defined(__CUDACC__) || defined(FORGE_EMULATED)
#include "forge_math_cuda.h"
#else
#include "forge_math_cpu.h"
#endif

/* ---- storage to register ------------------------------------------------------------------------------------ */

FORGE_INLINE double forge_get(double v) { return v; }
FORGE_INLINE float forge_get(float v) { return v; }
FORGE_INLINE float forge_get(forge_f16 v) { return forge_from_f16(v.bits); }
FORGE_INLINE float forge_get(forge_bf16 v) { return forge_as_float(uint32_t(v.bits) << 16); }
FORGE_INLINE int64_t forge_get(int64_t v) { return v; }
FORGE_INLINE int32_t forge_get(int32_t v) { return v; }
FORGE_INLINE int32_t forge_get(int16_t v) { return v; }
FORGE_INLINE int32_t forge_get(int8_t v) { return v; }
FORGE_INLINE int32_t forge_get(uint8_t v) { return v; }
FORGE_INLINE bool forge_get(bool v) { return v; }

/* ---- rounding to a 16-bit float, result still in a float; exact_* store such a value without rounding again ---- */

FORGE_INLINE forge_bf16 forge_bf16_from(float v) { return forge_bf16{forge_to_bf16(v)}; }
FORGE_INLINE forge_f16 forge_f16_from(float v) { return forge_f16{forge_to_f16(v)}; }
FORGE_INLINE forge_bf16 forge_bf16_exact(float v) { return forge_bf16{uint16_t(forge_as_bits(v) >> 16)}; }

/* ---- integer division and shifts; dividing by zero is not a trap ----------------------------------------------- */

template <class I> FORGE_INLINE I forge_int_trunc_div(I a, I b) {
  return b == 0 ? I(0) : b == I(-1) ? forge_neg(a) : a / b;
}
template <class I> FORGE_INLINE I forge_int_fmod(I a, I b) { return (b == 0) | (b == I(-1)) ? I(0) : a % b; }
template <class I> FORGE_INLINE I forge_int_remainder(I a, I b) {
  const I r = forge_int_fmod(a, b);
  return (r != 0) & ((r ^ b) < 0) ? r + b : r;
}
template <class I> FORGE_INLINE I forge_int_floor_div(I a, I b) {
  const I r = forge_int_fmod(a, b);
  return forge_int_trunc_div(a, b) - I((r != 0) & ((r ^ b) < 0));
}
template <class I> FORGE_INLINE I forge_int_pow(I base, I exponent) {
  if (exponent < 0) return base == 1 ? I(1) : base == I(-1) ? (exponent % 2 ? I(-1) : I(1)) : I(0);
  I result = 1;
  for (; exponent; exponent /= 2, base = forge_mul(base, base))
    if (exponent % 2) result = forge_mul(result, base);
  return result;
}
/* Shifts by a negative count or by the width or more give what an endless shift gives, as in torch. */
template <class I> FORGE_INLINE I forge_int_shl(I a, I n, int bits) {
  return (n < 0) | (n >= bits) ? I(0) : I(uint64_t(a) << n);
}
template <class I> FORGE_INLINE I forge_int_shr(I a, I n, int bits) {
  return (n < 0) | (n >= bits) ? (a < 0 ? I(-1) : I(0)) : I(a >> n);
}

#define FORGE_INTEGER(T)                                                                       \
  FORGE_INLINE T forge_trunc_div(T a, T b) { return forge_int_trunc_div(a, b); }               \
  FORGE_INLINE T forge_floor_div(T a, T b) { return forge_int_floor_div(a, b); }               \
  FORGE_INLINE T forge_remainder(T a, T b) { return forge_int_remainder(a, b); }               \
  FORGE_INLINE T forge_fmod(T a, T b) { return forge_int_fmod(a, b); }                         \
  FORGE_INLINE T forge_pow(T a, T b) { return forge_int_pow(a, b); }                           \
  FORGE_INLINE T forge_sign(T a) { return T(a > 0) - T(a < 0); }                               \
  FORGE_INLINE T forge_floor(T a) { return a; }                                                \
  FORGE_INLINE T forge_ceil(T a) { return a; }                                                 \
  FORGE_INLINE T forge_trunc(T a) { return a; }                                                \
  FORGE_INLINE T forge_round(T a) { return a; }                                                \
  FORGE_INLINE bool forge_isnan(T) { return false; }                                           \
  FORGE_INLINE bool forge_isinf(T) { return false; }
FORGE_INTEGER(int32_t)
FORGE_INTEGER(int64_t)
#undef FORGE_INTEGER

/* ---- floating-point functions built from the others; T is float or double ------------------------------------------ */

#define FORGE_FLOATING(T)                                                                      \
  FORGE_INLINE bool forge_isnan(T a) { return a != a; }                                        \
  FORGE_INLINE bool forge_isinf(T a) { return forge_abs(a) == T(FORGE_INF); }                  \
  FORGE_INLINE T forge_sign(T a) { return T(a > T(0)) - T(a < T(0)); }                         \
  FORGE_INLINE T forge_neg(T a) { return -a; }                                                 \
  FORGE_INLINE T forge_reciprocal(T a) { return T(1) / a; }                                    \
  FORGE_INLINE T forge_square(T a) { return forge_mul(a, a); }                                 \
  FORGE_INLINE T forge_sigmoid(T a) { return forge_inverse(forge_add(T(1), forge_exp(-a))); }  \
  FORGE_INLINE T forge_trunc_div(T a, T b) { return forge_trunc(a / b); }                      \
  FORGE_INLINE T forge_remainder(T a, T b) {                                                   \
    const T r = forge_fmod(a, b);                                                              \
    return (r != T(0)) & ((b < T(0)) != (r < T(0))) ? forge_add(r, b) : r;                     \
  }                                                                                            \
  FORGE_INLINE T forge_floor_div(T a, T b) {                                                   \
    if (b == T(0)) return a / b;                                                               \
    const T r = forge_fmod(a, b);                                                              \
    T q = forge_sub(a, r) / b;                                                                 \
    if ((r != T(0)) & ((b < T(0)) != (r < T(0)))) q = forge_sub(q, T(1));                      \
    if (q == T(0)) return forge_copysign(T(0), a / b);                                         \
    const T f = forge_floor(q);                                                                \
    return forge_sub(q, f) > T(0.5) ? forge_add(f, T(1)) : f;                                  \
  }
FORGE_FLOATING(float)
FORGE_FLOATING(double)
#undef FORGE_FLOATING

#endif
