"""Modules, functions and attributes that a Python candidate has no reason to use, and why."""

from __future__ import annotations

from collections.abc import Mapping

from torch_forge.validation.static.finding import names_in

Rule = tuple[str, str, bool]
"""Name of the rule, why, whether it rejects."""


def _all(rule: str, why: str, names: str, *, rejects: bool = True) -> dict[str, Rule]:
    return dict.fromkeys(names_in(names), (rule, why, rejects))


_FLAGS = "changes torch's settings for everybody; say it in the kernel"
_LOOKS = "looks at the program around it"

MODULES: Mapping[str, Rule] = {
    **_all("inside", _LOOKS, "gc inspect traceback dis tracemalloc faulthandler psutil resource pwd linecache"),
    **_all("native", "calls into memory or libraries beside torch", "ctypes cffi mmap _ctypes"),
    **_all("processes", "starts or touches processes", "subprocess multiprocessing signal pty posix pexpect"),
    **_all("network", "opens network connections", """
        socket ssl urllib http requests ftplib smtplib asyncio aiohttp httpx telnetlib xmlrpc socketserver"""),
    **_all("files", "opens or changes files", """
        shutil tempfile pathlib glob io fileinput sqlite3 dbm shelve zipfile tarfile gzip bz2 lzma fcntl"""),
    **_all("dynamic code", "makes or loads code at run time", """
        importlib imp runpy pkgutil zipimport code codeop pickle marshal dill cloudpickle builtins site
        sysconfig"""),
    **_all("late code", "runs code after the call", "atexit sched"),
    **_all("library", "is a library that has the kernels already", """
        flash_attn flashinfer xformers transformer_engine liger_kernel apex deepspeed vllm sglang onnxruntime
        tensorrt jax cublas cudnn fla"""),
    **_all("clock", "reads the clock", "time timeit datetime", rejects=False),
    **_all("threads", "starts threads that may outlive the call", "threading concurrent queue _thread", rejects=False),
    **_all("import", "can hide text", "base64 codecs zlib binascii", rejects=False),
}  # fmt: skip
KNOWN = names_in("""
    torch triton numpy math typing functools itertools collections dataclasses enum abc operator contextlib copy
    warnings numbers types string re random struct array statistics fractions decimal cmath logging os sys
    textwrap __future__ einops numba cuda cutlass cupy tilelang helion typing_extensions heapq bisect
""")
"""Modules that candidates import for good reasons; some of their parts are below."""

CALLS: Mapping[str, Rule] = {
    **_all("dynamic code", "makes or loads code at run time", "eval exec compile __import__ breakpoint"),
    **_all("files", "opens or changes files", """
        open torch.load torch.save torch.from_file torch.hub.load numpy.load numpy.save numpy.savez
        numpy.fromfile numpy.memmap numpy.loadtxt numpy.savetxt torch.hub.load_state_dict_from_url
        torch.UntypedStorage.from_file"""),
    **_all("dynamic code", "loads a library", """
        torch.ops.load_library torch.classes.load_library numpy.ctypeslib.load_library"""),
    **_all("inside", _LOOKS, "globals locals vars sys._getframe sys._current_frames sys.settrace sys.setprofile"),
    **_all("ends", "ends the process; raise an error instead", "exit quit sys.exit os._exit os.abort"),
    **_all("flags", _FLAGS, """
        torch.set_float32_matmul_precision torch.set_num_threads torch.set_num_interop_threads
        torch.set_default_dtype torch.set_default_device torch.set_default_tensor_type
        torch.use_deterministic_algorithms torch.set_flush_denormal torch.set_deterministic_debug_mode
        torch.backends.cuda.enable_flash_sdp torch.backends.cuda.enable_math_sdp
        torch.backends.cuda.enable_mem_efficient_sdp torch.backends.cuda.enable_cudnn_sdp
        torch.backends.cuda.preferred_linalg_library torch.backends.cuda.preferred_blas_library
        torch.backends.mkldnn.set_flags torch.backends.cudnn.set_flags
        torch.cuda.set_per_process_memory_fraction torch.cuda.memory.change_current_allocator
        torch.utils.swap_tensors torch.set_printoptions torch.multiprocessing.set_start_method
        torch.cuda.set_device"""),
    **_all("prints", "prints, which nobody reads", "print sys.stdout.write sys.stderr.write triton.language.device_print",
           rejects=False),
    **_all("synchronises", "waits for the device", "torch.cuda.synchronize", rejects=False),
    **_all("stream", "works beside the stream that it was called on", """
        torch.cuda.Stream torch.cuda.stream torch.cuda.set_stream torch.cuda.CUDAGraph torch.cuda.graph
        torch.cuda.make_graphed_callables torch.cuda.ExternalStream""", rejects=False),
    **_all("state", "changes what torch draws or records from here on", """
        torch.manual_seed torch.seed torch.set_grad_enabled torch.set_rng_state torch.cuda.manual_seed
        torch.cuda.manual_seed_all""", rejects=False),
    **_all("own work", "lets torch's compiler write the kernel", "torch.compile torch.jit.script torch.jit.trace",
           rejects=False),
    **_all("clock", "measures itself", "triton.testing.do_bench torch.cuda.Event torch.utils.benchmark.Timer",
           rejects=False),
}  # fmt: skip
"""Calls, by full name."""

PARTS: Mapping[str, Rule] = {
    **_all("inside", _LOOKS, """
        sys.modules sys.meta_path sys.path_hooks sys.path sys.path_importer_cache sys.argv sys.stdin
        sys.stdout sys.stderr sys.__stdout__ sys.__stderr__ sys.addaudithook sys.excepthook
        sys.setswitchinterval sys.setrecursionlimit"""),
    **_all("dynamic code", "makes code at run time", "types.FunctionType types.CodeType types.MethodType types.ModuleType"),
}  # fmt: skip
"""Attributes of modules, by full name."""
HARMLESS_OS = names_in("os.path os.cpu_count os.linesep os.sep os.name os.PathLike os.fspath")
BUILD_SETTINGS = names_in("TORCH_CUDA_ARCH_LIST MAX_JOBS TRITON_CACHE_DIR TORCH_EXTENSIONS_DIR CUDA_HOME CXX CC")
"""Environment variables that published candidates set for their own build."""

INNARDS = names_in("""
    __globals__ __code__ __closure__ __subclasses__ __bases__ __mro__ __builtins__ __loader__ __spec__ f_back
    f_locals f_globals f_code f_builtins gi_frame cr_frame tb_frame tb_next __getattribute__ __reduce__
    __reduce_ex__ __setstate__ __getstate__ __defaults__ __kwdefaults__ _make_subclass _C
""")
"""Attributes through which Python code reaches what it was not given."""
SOFT_INNARDS = names_in(
    "__getattribute__ __mro__ __bases__ __defaults__ __kwdefaults__ _make_subclass _C __getstate__ __setstate__"
)
"""Those with honest uses: a note."""

COMPUTES = names_in("""
    matmul mm bmm addmm addmv mv dot baddbmm addbmm einsum tensordot linear conv1d conv2d conv3d
    conv_transpose1d conv_transpose2d conv_transpose3d bilinear scaled_dot_product_attention softmax log_softmax
    layer_norm batch_norm group_norm instance_norm rms_norm local_response_norm gelu relu silu mish elu selu
    celu leaky_relu hardtanh hardswish hardsigmoid sigmoid tanh softplus softsign logsigmoid exp log sqrt rsqrt
    pow sin cos erf sum mean var std prod norm amax amin max min argmax argmin cumsum cumprod logsumexp sort
    topk cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss kl_div binary_cross_entropy
    cosine_similarity max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d
    adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool2d interpolate embedding dropout normalize add mul
    sub div where clamp gather scatter index_select outer kron cdist svd qr inverse cholesky solve
""")
"""Operators of torch that do a kernel's work."""
