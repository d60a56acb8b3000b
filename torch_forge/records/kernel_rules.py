"""What a kernel's source may include, and what it may not do in one sentence: read by the prompt and by the static gate."""

from __future__ import annotations

MAY_NOT = (
    "No torch or ATen headers, no libraries (cuBLAS, cuDNN, CUTLASS, Thrust, CUB, MKL), no allocation, no "
    "synchronisation, no files, environment, processes, network, printing or inline files. Only C++ standard and CUDA "
    "toolkit headers. No token pasting, no code that runs before forge_launch, no integers turned into functions."
)
"""For whoever writes a kernel."""

_CONTRACT = ("forge.h", "forge_math.h")
_C = (
    "stdint.h", "stddef.h", "stdbool.h", "stdlib.h", "limits.h", "float.h", "math.h", "string.h", "assert.h", "ctype.h",
    "inttypes.h", "fenv.h", "complex.h", "alloca.h",
)  # fmt: skip
_CPP = (
    "cstdint", "cstddef", "cstdlib", "climits", "cfloat", "cmath", "cstring", "cassert", "cctype", "cinttypes", "cfenv",
    "algorithm", "any", "array", "atomic", "bit", "bitset", "charconv", "compare", "complex", "concepts",
    "condition_variable", "deque", "exception", "forward_list", "functional", "future", "initializer_list", "iterator",
    "limits", "list", "map", "memory", "mutex", "new", "numbers", "numeric", "optional", "queue", "ranges", "ratio",
    "set", "shared_mutex", "span", "stack", "stdexcept", "string", "string_view", "system_error", "thread",
    "tuple", "type_traits", "typeindex", "typeinfo", "unordered_map", "unordered_set", "utility", "valarray", "variant",
    "vector", "version",
)  # fmt: skip
_CPU = (
    "immintrin.h", "x86intrin.h", "emmintrin.h", "xmmintrin.h", "pmmintrin.h", "tmmintrin.h", "smmintrin.h", "nmmintrin.h",
    "wmmintrin.h", "cpuid.h", "arm_neon.h", "arm_sve.h", "arm_bf16.h", "arm_fp16.h", "arm_acle.h", "omp.h",
)  # fmt: skip
_CUDA = (
    "cuda.h", "cuda_runtime.h", "cuda_runtime_api.h", "cudaTypedefs.h", "cuda_fp16.h", "cuda_fp16.hpp", "cuda_bf16.h",
    "cuda_bf16.hpp", "cuda_fp8.h", "cuda_fp6.h", "cuda_fp4.h", "cuda_pipeline.h", "cuda_pipeline_primitives.h",
    "cuda_awbarrier.h", "cuda_awbarrier_primitives.h", "cuComplex.h", "device_launch_parameters.h", "device_functions.h",
    "device_types.h", "driver_types.h", "vector_types.h", "vector_functions.h", "math_constants.h", "math_functions.h",
    "mma.h", "crt/mma.h", "sm_30_intrinsics.h", "sm_32_intrinsics.h", "sm_61_intrinsics.h", "cooperative_groups.h",
    "cooperative_groups/reduce.h", "cooperative_groups/scan.h", "cooperative_groups/memcpy_async.h", "nv/target",
    "cuda/annotated_ptr", "cuda/atomic", "cuda/barrier", "cuda/cmath", "cuda/functional", "cuda/latch", "cuda/pipeline",
    "cuda/ptx", "cuda/semaphore", "cuda/std/algorithm", "cuda/std/array", "cuda/std/atomic", "cuda/std/barrier",
    "cuda/std/bit", "cuda/std/cfloat", "cuda/std/climits", "cuda/std/cmath", "cuda/std/complex", "cuda/std/cstddef",
    "cuda/std/cstdint", "cuda/std/cstring", "cuda/std/functional", "cuda/std/limits", "cuda/std/numeric",
    "cuda/std/optional", "cuda/std/span", "cuda/std/tuple", "cuda/std/type_traits", "cuda/std/utility",
)  # fmt: skip
HEADERS = frozenset((*_CONTRACT, *_C, *_CPP, *_CPU, *_CUDA))
"""Everything that a kernel may include without a word."""
IDLE_HEADERS = frozenset(
    {
        "unistd.h", "stdio.h", "cstdio", "errno.h", "cerrno", "time.h", "ctime", "chrono", "iostream", "iosfwd", "istream",
        "ostream", "sstream", "iomanip", "locale.h", "wchar.h", "random", "regex", "format", "sched.h", "pthread.h",
        "setjmp.h", "csetjmp", "signal.h", "csignal", "stdarg.h", "cstdarg",
    }
)  # fmt: skip
"""System headers that only declare: a kernel has no use for them, and including one does nothing yet."""
