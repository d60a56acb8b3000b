"""What a built kernel may ask of other libraries: by name, for each backend; everything else is a finding."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch_forge.validation.static.finding import names_in
from torch_forge.validation.static.words import CUDA_RUNTIME, LIBRARY_NAMES, WORDS, cuda_call


@dataclass(frozen=True, slots=True)
class Objection:
    """What is wrong with an import."""

    why: str
    rejects: bool = True


_MATHS = names_in("""
    acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh drem erf erfc exp exp10 exp2 expm1 fabs fdim finite
    floor fma fmax fmin fmod frexp gamma hypot ilogb isinf isnan j0 j1 jn ldexp lgamma lgamma_r llrint llround log log10
    log1p log2 logb lrint lround modf nan nearbyint nextafter nexttoward pow pow10 remainder remquo rint round roundeven
    scalb scalbln scalbn significand sin sincos sinh sqrt tan tanh tgamma trunc y0 y1 yn cabs cacos cacosh carg casin
    casinh catan catanh ccos ccosh cexp cimag clog conj cpow cproj creal csin csinh csqrt ctan ctanh
""")
_MATH = re.compile(
    rf"(?:__)?(?:{'|'.join(sorted(_MATHS))})(?:f|l|f16|f32|f64|f128|f32x|f64x)?(?:_finite)?|_ZGV\w+|signgam"
    r"|__(?:fpclassify|signbit|isnan|isinf|finite)[fl]?|fegetround|fegetexcept|fetestexcept"
)
_PLAIN_C = names_in("""
    memcpy memmove memset memcmp memchr memrchr memmem mempcpy bcmp bcopy bzero strlen strnlen strcmp strncmp strchr strrchr
    strstr strcpy strncpy strcat strncat strspn strcspn strpbrk strtol strtoll strtoul strtoull strtof strtod atoi atol atof
    abs labs llabs div ldiv lldiv qsort bsearch snprintf vsnprintf __isoc23_strtol __isoc23_strtoll __isoc23_strtoul
    __isoc23_strtoull __ctype_b_loc __ctype_tolower_loc __ctype_toupper_loc tolower toupper isdigit isalpha isspace
    __memcpy_chk __memmove_chk __memset_chk __mempcpy_chk __strcpy_chk __strncpy_chk __strcat_chk __snprintf_chk
    __vsnprintf_chk __stack_chk_fail __stack_chk_guard __chk_fail
    __errno_location __tls_get_addr __libc_single_threaded __gmon_start__ _ITM_deregisterTMCloneTable
    _ITM_registerTMCloneTable __cpu_model __cpu_indicator_init __cpu_features2
    pthread_mutex_init pthread_mutex_destroy pthread_mutex_lock pthread_mutex_trylock pthread_mutex_unlock pthread_once
    pthread_self pthread_equal pthread_key_create __pthread_key_create pthread_key_delete pthread_getspecific
    pthread_setspecific pthread_cond_init pthread_cond_destroy pthread_cond_wait pthread_cond_signal pthread_cond_broadcast
    pthread_join pthread_rwlock_rdlock pthread_rwlock_tryrdlock pthread_rwlock_wrlock pthread_rwlock_trywrlock
    pthread_rwlock_unlock pthread_spin_init pthread_spin_destroy pthread_spin_lock pthread_spin_trylock pthread_spin_unlock
    pthread_barrier_init pthread_barrier_wait pthread_barrier_destroy sched_yield
""")
_OPENMP = re.compile(
    r"(?:GOMP|GOACC)_(?!target|offload)\w+|__kmpc_(?!alloc|target|init_allocator)\w+"
    r"|omp_(?:get_(?!wtime|wtick)|in_|init_(?!alloc)|destroy_(?!alloc)|(?:set|unset|test)_(?:nest_)?lock)\w*"
)
_CLASSES = "|".join(
    sorted(
        names_in(r"""
            \d+exception \d+bad_\w+ \d+logic_error \d+runtime_error \d+out_of_range \d+invalid_argument \d+length_error
            \d+domain_error \d+range_error \d+overflow_error \d+underflow_error \d+system_error \d+future_error
            \d+error_category \d+thread \d+condition_variable \d+once_flag \d+mutex \d+recursive_mutex \d+timed_mutex
            \d+type_info \d+locale 3_V2 8__detail 7__cxx11(?:12basic_string|4list|10_List_base) 13__future_base
            15__exception_ptr 28__atomic_futex_unsigned_base 6chrono 8valarray
        """)
    )
)
_CPP = re.compile(
    r"__cxa_\w+|__gxx_personality_v0|__once_proxy|_Unwind_(?:Resume|Resume_or_Rethrow|DeleteException|RaiseException)"
    r"|_Zn[wa]\w+|_Zd[la]\w+|_ZSt7nothrow|_ZSt9terminatev|_ZSt\d+__throw_\w+|_ZSt\d+__once_call(?:able)?"
    r"|_ZSt11_Hash_bytes\w+|_ZSt\d+(?:future|generic|system)_category\w*|_ZSt\d+_Rb_tree_\w+"
    r"|_ZSt\d+(?:rethrow|current)_exception\w*|_ZSt\d+uncaught_exceptions?v|_ZSt\d+__glibcxx_assert_fail\w+|_ZNK?S[as]\w*"
    r"|_ZT[VIS](?:[a-z]|P[a-zK]+|N10__cxxabiv1\w+|St\d+\w+|NSt(?!3pmr|10filesystem)\w+|Sa\w*|Ss\w*)"
    rf"|_ZNK?St(?:{_CLASSES})\w*|_ZNSt3__1\w+|__atomic_\w+|__sync_\w+|__aarch64_\w+|__emutls_\w+"
)
"""Containers, strings, exceptions, threads of the C++ library, and what the compiler itself calls."""
_NO_CPP = re.compile(
    r"_Z\w*(?:filesystem|basic_filebuf|basic_[io]?fstream|basic_[io]?stream|random_device|St4cout|St4cerr|St3cin|8ios_base)\w*"
)
_CUDA_GLUE = re.compile(
    r"__cuda(?:RegisterFatBinary(?:End)?|UnregisterFatBinary|RegisterFunction|RegisterVar|RegisterManagedVar|InitModule"
    r"|PushCallConfiguration|PopCallConfiguration|GetKernel|LaunchKernel)(?:_ptsz)?"
)


def _noted(why: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names_in(names), why)


_NOTED = {
    **_noted("reads the clock or waits", """
        clock_gettime clock_nanosleep nanosleep usleep sleep time clock gettimeofday omp_get_wtime omp_get_wtick
        _ZNSt6chrono3_V212steady_clock3nowEv _ZNSt6chrono3_V212system_clock3nowEv
        _ZNSt11this_thread11__sleep_forENSt6chrono8durationIlSt5ratioILl1ELl1EEEENS1_IlS2_ILl1ELl1000000000EEEE"""),
    **_noted("starts threads that may outlive the call", """
        pthread_create pthread_detach pthread_attr_init pthread_attr_destroy pthread_attr_setstacksize
        _ZNSt6thread6detachEv"""),
    **_noted("changes settings that outlive the call", """
        fesetround fesetenv feholdexcept feupdateenv feclearexcept feraiseexcept feenableexcept fedisableexcept
        omp_set_num_threads omp_set_dynamic omp_set_nested omp_set_schedule omp_set_max_active_levels kmp_set_blocktime"""),
    **_noted("looks at the machine", "sysconf get_nprocs get_nprocs_conf sched_getcpu sched_getaffinity getpagesize"),
    **_noted("computes with numbers that a reference does not have", "rand srand rand_r random srandom drand48 lrand48"),
    **_noted("ends the process where an assertion fails; return an error code instead", "__assert_fail"),
    **_noted("includes iostream, which a kernel has no use for", "_ZNSt8ios_base4InitC1Ev _ZNSt8ios_base4InitD1Ev"),
    **_noted("fetches functions of the driver by name", "cudaGetDriverEntryPoint cudaGetDriverEntryPointByVersion"),
}  # fmt: skip
_WAITS = (
    "asks the system directly, as std::barrier, std::latch, std::counting_semaphore and waiting atomics do: take a mutex "
    "and a condition variable"
)


def objection(name: str, backend: str) -> Objection | None:
    """What is wrong with asking other libraries for ``name``; None if a kernel for ``backend`` may."""
    if name in _NOTED and (backend == "cuda" or not name.startswith("cuda")):
        return Objection(_NOTED[name], rejects=False)
    if name == "syscall":
        return Objection(_WAITS)
    if name in _PLAIN_C or _MATH.fullmatch(name) or _OPENMP.fullmatch(name):
        return None
    if _CPP.fullmatch(name) and not _NO_CPP.fullmatch(name):
        return None
    if backend == "cuda" and (
        name in CUDA_RUNTIME or name.removesuffix("_ptsz") in CUDA_RUNTIME or _CUDA_GLUE.fullmatch(name)
    ):
        return None
    return Objection(_reason(name))


def stands_in(name: str) -> bool:
    """Whether other libraries look for this name, so that a kernel that defines it could answer in their place."""
    known = name in _PLAIN_C or name in WORDS or _MATH.fullmatch(name) or _OPENMP.fullmatch(name) or name in CUDA_RUNTIME
    return bool(
        known or re.fullmatch(r"_Z(?:n[wa]|d[la])\w+|__cxa_\w+|cuda[A-Z]\w*|cu[A-Z]\w*|_ZN(?:2at|3c10|5torch)\w+", name)
    )


def _reason(name: str) -> str:
    word = WORDS.get(name) or WORDS.get(re.sub(r"^__(.*)_chk$|^__(?:isoc\d+_)?(.*?)(?:64)?$", r"\1\2", name))
    if word is not None:
        return word.why
    if re.match(r"_ZNK?(?:2at|3c10|5torch|6caffe2)", name) or name.startswith(("aoti_torch", "torch_")):
        return "calls torch; write the computation itself"
    if LIBRARY_NAMES.fullmatch(name):
        return "calls a library"
    if _NO_CPP.fullmatch(name):
        return "opens files or prints"
    cuda = cuda_call(name)
    if cuda is not None or name in CUDA_RUNTIME:
        return cuda.why if cuda is not None else "is of the CUDA runtime, in a kernel for the CPU"
    return "is not among the functions that a kernel needs"


NEEDED = re.compile(
    r"(?:libc|libm|libmvec|libgomp|libomp|libiomp5|libstdc\+\+|libc\+\+|libc\+\+abi|libunwind|libgcc_s|libpthread|librt|libdl"
    r"|libatomic|ld-linux[\w-]*)\.so(?:\.\d+)*"
)
"""Libraries that a kernel may need to be loaded."""
NEEDED_CUDA = re.compile(r"libcudart\.so(?:\.\d+)*")
"""Besides, on the GPU."""
