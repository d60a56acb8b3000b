"""Names that a kernel's source has no reason to use, and why."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch_forge.validation.static.finding import names_in


@dataclass(frozen=True, slots=True)
class Word:
    """One name."""

    rule: str
    why: str
    rejects: bool = True
    common: bool = False
    """Also an ordinary name (``open``, ``read``): no finding where the source declares it itself."""


def _words(rule: str, why: str, names: str, *, rejects: bool = True, common: bool = False) -> dict[str, Word]:
    return {name: Word(rule, why, rejects, common) for name in names.split()}


_PROCESSES = "starts or touches processes"
_NETWORK = "opens network connections"
_FILES = "opens or changes files"
_MEMORY = "changes memory mappings or file descriptors"
_LOADS = "loads or looks up code at run time"
_ENVIRONMENT = "reads or changes the environment"
_ENDS = "prints, ends the process or jumps out; return an error code instead"
_ALLOCATES = "allocates; a kernel has only `workspace` and the stack"
_WATCHES = "reads the clock or waits"
_INSIDE = "looks at the process around it"

WORDS: Mapping[str, Word] = {
    **_words("processes", _PROCESSES,
        "system popen pclose fork vfork clone3 execl execlp execle execv execvp execvpe execve execveat "
        "fexecve posix_spawn posix_spawnp ptrace syscall prctl setsid setpgid waitpid wait4 waitid wordexp "
        "seccomp unshare setns pthread_atfork pthread_kill sigqueue tgkill tkill"),
    **_words("processes", _PROCESSES,
        "clone kill daemon", common=True),
    **_words("network", _NETWORK,
        "getaddrinfo gethostbyname gethostname sendto recvfrom sendmsg recvmsg sockaddr sockaddr_in"),
    **_words("network", _NETWORK,
        "socket connect bind listen accept accept4 send recv socketpair", common=True),
    **_words("files", _FILES,
        "fopen freopen fdopen openat creat unlink mkstemp mkdtemp mkdir rmdir shm_open opendir readdir "
        "scandir ftw nftw tmpfile fread fwrite fgets fgetc fputs fputc fclose closedir fscanf getline ifstream ofstream "
        "fstream basic_ifstream basic_ofstream basic_fstream basic_filebuf filebuf readlink symlink realpath "
        "getcwd chdir chroot umount chmod chown ftruncate inotify_init fanotify_init"),
    **_words("files", _FILES,
        "open read write pread pwrite readv writev lseek access stat fstat rename remove truncate glob mount "
        "filesystem",
             common=True),
    **_words("environment", _ENVIRONMENT,
        "getenv secure_getenv setenv putenv unsetenv clearenv environ __environ _environ"),
    **_words("memory", _MEMORY,
        "mmap mmap64 munmap mprotect mremap madvise memfd_create process_vm_readv process_vm_writev "
        "userfaultfd dup2 dup3 pipe2 sendfile shmget shmat mlock brk sbrk"),
    **_words("memory", _MEMORY,
        "dup pipe fcntl ioctl close splice", common=True),
    **_words("loading", _LOADS,
        "dlopen dlmopen dlsym dlvsym dlclose dladdr dladdr1 dlinfo dl_iterate_phdr _dl_sym _r_debug link_map "
        "_DYNAMIC _GLOBAL_OFFSET_TABLE_ __ehdr_start getauxval __libc_dlsym __libc_dlopen_mode"),
    **_words("inside", _INSIDE,
        "__builtin_return_address __builtin_frame_address __builtin_thread_pointer backtrace_symbols "
        "getcontext makecontext setcontext swapcontext ucontext_t __seg_fs __seg_gs _readfsbase_u64 "
        "_readgsbase_u64 _writefsbase_u64 _writegsbase_u64 program_invocation_name "
        "program_invocation_short_name getpid getppid gettid getuid geteuid getpwuid pthread_getattr_np"),
    **_words("inside", _INSIDE, "backtrace", common=True),
    **_words("prints", _ENDS,
        "printf fprintf dprintf vprintf vfprintf wprintf puts putchar perror psignal fflush stdout stderr "
        "stdin cerr sigaction sigaltstack sigprocmask pthread_sigmask atexit at_quick_exit quick_exit _exit "
        "_Exit abort longjmp siglongjmp setjmp sigsetjmp _setjmp __sigsetjmp set_terminate set_new_handler"),
    **_words("prints", _ENDS,
        "exit print println terminate signal raise cout clog", common=True),
    **_words("allocation", _ALLOCATES,
        "malloc calloc realloc reallocarray aligned_alloc posix_memalign memalign valloc pvalloc strdup "
        "_mm_malloc omp_alloc omp_target_alloc"),
    **_words("clock", _WATCHES,
        "clock_gettime gettimeofday clock_nanosleep nanosleep usleep __rdtsc __rdtscp _rdtsc rdtsc "
        "__builtin_ia32_rdtsc __builtin_ia32_rdtscp system_clock steady_clock high_resolution_clock sleep_for "
        "sleep_until omp_get_wtime clock64 globaltimer", rejects=False),
    **_words("clock", _WATCHES,
        "clock sleep", rejects=False, common=True),
    **_words("threads", "starts threads that may outlive the call",
        "detach pthread_create", rejects=False),
    **_words("state", "changes how the processor rounds or treats denormals, for whoever comes after",
        "_mm_setcsr _MM_SET_FLUSH_ZERO_MODE _MM_SET_DENORMALS_ZERO_MODE _MM_SET_ROUNDING_MODE "
        "__builtin_ia32_ldmxcsr fesetround fesetenv feenableexcept omp_set_num_threads omp_set_dynamic "
        "omp_set_nested omp_set_schedule", rejects=False),
    **_words("build time", "makes the build differ from day to day",
        "__DATE__ __TIME__ __TIMESTAMP__", rejects=False),
    **_words("device", "ends or stops the kernel from inside",
        "__assertfail __assert_fail", rejects=False),
}  # fmt: skip
"""Names that are findings wherever they stand, but as members (``x.open``)."""

LIBRARY_SPACES: Mapping[str, str] = {
    **dict.fromkeys(("at", "c10", "torch", "aten", "caffe2", "pybind11"), "calls torch; write the computation itself"),
    **dict.fromkeys(("cutlass", "cute", "thrust", "cub", "Eigen", "dnnl", "tbb", "boost"), "calls a library"),
}
"""Namespaces that a kernel may not use."""
LIBRARY_NAMES = re.compile(
    r"(?:cublas|cudnn|cusparse|cusolver|cufft|curand|cutensor|nccl|nvrtc|nvjitlink|npp|mkl_|cblas_|LAPACKE_|dnnl_|vml)[A-Za-z_]\w*"
    r"|[sdcz]gemm_|(?:lib)?PyObject\w*|Py_\w+|Py[A-Z][a-z]+_\w+"
)
"""Functions of libraries."""

CUDA_NAMES = re.compile(r"(?:cuda|cu(?!C(?:real|imag|add|sub|mul|div|abs|fma)f?$|Conjf?$))[A-Z]\w*")
"""Functions of the CUDA runtime and driver; cuComplex.h's arithmetic is the kernel's own business."""
CUDA_RUNTIME = names_in("""
    cudaGetLastError cudaPeekAtLastError cudaGetErrorString cudaGetErrorName cudaLaunchKernel cudaLaunchKernelEx
    cudaLaunchKernelExC cudaLaunchCooperativeKernel cudaFuncSetAttribute cudaFuncGetAttributes
    cudaFuncSetCacheConfig cudaOccupancyMaxActiveBlocksPerMultiprocessor
    cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags cudaOccupancyMaxPotentialBlockSize
    cudaOccupancyMaxPotentialBlockSizeVariableSMem cudaOccupancyMaxActiveClusters
    cudaOccupancyMaxPotentialClusterSize cudaOccupancyAvailableDynamicSMemPerBlock cudaMemsetAsync
    cudaMemset2DAsync cudaMemcpyAsync cudaMemcpy2DAsync cudaGetDevice cudaDeviceGetAttribute
    cudaGetDeviceProperties cudaGetSymbolAddress cudaTriggerProgrammaticLaunchCompletion
    cudaGridDependencySynchronize cuTensorMapEncodeTiled cuTensorMapEncodeIm2col cuTensorMapReplaceAddress
""")
"""What a kernel may call of the CUDA runtime and driver."""
_CUDA_WHY: tuple[tuple[str, str, str], ...] = (
    (r"cuda(Malloc|Free|HostAlloc|HostRegister|MemPool|Array)\w*|cuMem(Alloc|Free|Create|Map|Pool)\w*", "allocation",
     _ALLOCATES),
    (r"\w*Synchronize\w*|cudaMem(cpy|set)(2D|3D|ToSymbol|FromSymbol)?|cudaStreamWait\w*|cudaStreamQuery", "synchronises",
     "synchronises; only enqueue work on `stream`"),
    (r"cuda(SetDevice\w*|Device(Reset|Set\w+|Enable\w+)|CtxReset\w*|Stream(Create|Destroy|Begin|End)\w*|Initialize\w*)|cuCtx\w+",
     "synchronises", "changes the device or makes streams; only enqueue work on `stream`"),
    (r"cudaGetDriverEntryPoint\w*|cuda(Ipc|Graph|User|Launch|Event|Import|Export|Library|Kernel)\w*|cu[A-Z]\w*", "contract",
     "goes around the launch contract"),
)  # fmt: skip
_CUDA_RULES = tuple((re.compile(pattern), rule, why) for pattern, rule, why in _CUDA_WHY)


def cuda_call(name: str) -> Word | None:
    """What is wrong with calling a function of CUDA; None if a kernel may."""
    if name in CUDA_RUNTIME or not CUDA_NAMES.fullmatch(name):
        return None
    for pattern, rule, why in _CUDA_RULES:
        if pattern.fullmatch(name):
            return Word(rule, why)
    return Word("contract", "is not among the functions of CUDA that a kernel needs", common=True)


FORBIDDEN_NAMES = (
    *sorted(name for name, word in WORDS.items() if word.rejects),
    *sorted(LIBRARY_SPACES),
    *sorted(
        names_in("""
        cudaMalloc cudaMallocAsync cudaFree cudaFreeAsync cudaMemcpy cudaMemset cudaDeviceSynchronize cudaStreamSynchronize
        cudaStreamCreate cudaSetDevice cudaEventRecord cudaGraphLaunch cudaHostRegister cudaIpcOpenMemHandle
        cudaLaunchHostFunc cuMemAlloc_v2 cuLaunchKernel cuModuleLoadData cublasCreate_v2 cublasSgemm_v2 cublasGemmEx
        cublasLtMatmul cudnnCreate nvrtcCompileProgram""")
    ),
)
"""Names to try where a macro puts one together; of whole families, the members that somebody would want."""
