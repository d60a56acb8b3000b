"""Static rules for source that a model wrote: what a kernel has no reason to contain.

These are tripwires, not a wall: text can be disguised, and the sandbox that builds and runs the candidate is what
protects the machine. They catch the honest shortcut (calling torch or a library instead of writing a kernel)
early, cheaply and with a reason that the model can act on.
"""

from __future__ import annotations

import re

from torch_forge.generation.llm.source_text import read_source

HEADERS = frozenset(
    {
        "forge.h", "forge_math.h",
        "stdint.h", "stddef.h", "stdbool.h", "limits.h", "float.h", "math.h", "string.h", "cstdint", "cstddef", "climits",
        "cfloat", "cmath", "cstring", "algorithm", "array", "atomic", "barrier", "bit", "complex",
        "condition_variable", "functional", "initializer_list", "iterator", "limits", "memory", "mutex", "new", "numbers",
        "numeric", "optional", "span", "thread", "tuple", "type_traits", "utility", "vector",
        "immintrin.h", "x86intrin.h", "emmintrin.h", "xmmintrin.h", "smmintrin.h", "tmmintrin.h", "arm_neon.h", "arm_sve.h",
        "omp.h",
        "cuda.h", "cuda_runtime.h", "cuda_runtime_api.h", "cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "cuda_pipeline.h",
        "cuda_awbarrier.h", "device_launch_parameters.h", "vector_types.h", "math_constants.h", "mma.h", "crt/mma.h",
        "cooperative_groups.h", "cooperative_groups/reduce.h", "cooperative_groups/scan.h",
        "cooperative_groups/memcpy_async.h", "cuda/barrier", "cuda/pipeline", "cuda/ptx", "cuda/std/cmath",
        "cuda/std/cstdint", "cuda/std/limits", "cuda/std/type_traits",
    }
)  # fmt: skip
"""Everything a candidate may include."""


def _calls(names: str) -> str:
    """A pattern for a call of any of the names, which are separated by spaces."""
    return rf"\b(?:{'|'.join(names.split())})\s*\("


_RULES: tuple[tuple[str, str], ...] = (
    (r"\b(?:at|c10|torch|aten)\s*::", "calls torch; write the computation itself"),
    (r"\b(?:cutlass|cute|thrust|cub)\s*::", "calls a library"),
    (r"\b(?:cublas|cudnn|cusparse|cusolver|cufft|curand|nccl|mkl_|cblas_|nvrtc)\w*\s*\(", "calls a library"),
    (r"\b(?:dlopen|dlsym|dlmopen|dl_iterate_phdr)\b", "loads code at run time"),
    (_calls("system popen fork vfork clone exec[lv][pe]{0,2} execveat posix_spawnp? ptrace kill syscall"),
     "starts or touches processes"),
    (_calls("socket connect bind listen accept getaddrinfo gethostbyname sendto recvfrom"), "opens network connections"),
    (_calls("fopen freopen open openat creat unlink remove rename mkstemp shm_open opendir"), "opens or changes files"),
    (r"\b(?:[io]?fstream|filesystem)\b", "opens or changes files"),
    (r"\b(?:getenv|secure_getenv|setenv|putenv|environ)\b", "reads or changes the environment"),
    (_calls(r"mmap mprotect process_vm_\w+ dup2? pipe2?"), "changes memory mappings or file descriptors"),
    (_calls("printf fprintf puts perror signal sigaction atexit exit _exit abort longjmp setjmp"), "prints, exits or jumps"),
    (r"\bstd\s*::\s*(?:cout|cerr|clog|terminate)\b", "prints or exits"),
    (r"__attribute__\s*\(\(\s*(?:__)?(?:constructor|destructor|ifunc|alias|weakref)", "runs code outside forge_launch"),
    (_calls(r"cudaMalloc\w* cudaFree\w* malloc calloc realloc aligned_alloc posix_memalign"),
     "allocates; a kernel has only `workspace`"),
    (_calls(r"cuda(?:Device|Stream|Event)Synchronize cudaDeviceReset cudaSetDevice cudaDeviceSetLimit cudaStreamCreate\w*"),
     "synchronises or changes the device; only enqueue work on `stream`"),
    (_calls(r"cudaIpc\w+ cudaHostRegister cudaGraph\w+ cuModule\w+ cuLaunch\w+ cudaEvent\w+"),
     "goes around the launch contract"),
    (r"##|%:%:", "pastes tokens, which hides names; write them out"),
    (r"#\s*(?:embed|import|include_next|line)\b|%:", "uses a preprocessor feature that a kernel does not need"),
)  # fmt: skip
"""Patterns over code without comments and literals, and what is wrong with a hit."""
_COMPILED = tuple((re.compile(pattern), why) for pattern, why in _RULES)

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b[ \t]*(?P<what>[^\n]*)", re.MULTILINE)
_ASM = re.compile(r"\b(?:asm|__asm|__asm__)\b")
_BAD_LITERAL = re.compile(
    r"/(?:proc|etc|dev|sys|home|root|tmp)/|\.incbin|\.include|\bsyscall\b|\bint\s+\$?0x80|\bsvc\b", re.IGNORECASE
)


def tripped(source: str, backend: str) -> list[str]:
    """What in ``source`` a kernel for ``backend`` (``cuda`` or ``cpu``) may not contain: reasons, or an empty list."""
    read = read_source(source)
    reasons = [f"`{_shown(m[0])}` {why}" for pattern, why in _COMPILED if (m := pattern.search(read.code))]
    reasons += _includes(read.uncommented)
    for literal in read.literals:
        if bad := _BAD_LITERAL.search(literal):
            reasons.append(f"a literal holds `{bad[0]}`, which a kernel does not need")
    if backend == "cpu" and _ASM.search(read.code):
        reasons.append("inline assembly in a CPU kernel; use intrinsics")
    return reasons


def _includes(uncommented: str) -> list[str]:
    """Headers outside the list."""
    found = []
    for match in _INCLUDE.finditer(uncommented):
        what = match["what"].strip()
        named = re.fullmatch(r'<([^<>"]+)>|"([^<>"]+)"', what)
        header = (named[1] or named[2]).strip() if named else ""
        if header not in HEADERS:
            found.append(f"#include {_shown(what)} is not allowed; forge.h, C++ standard and CUDA runtime headers are")
    return found


def _shown(text: str) -> str:
    return " ".join(text.split())[:60]
