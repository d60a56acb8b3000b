"""Tasks for the worker pool's tests: each does one thing that a candidate may do to its worker."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def echo(payload: Any, scratch: Path) -> Any:
    sys.stdout.write("said on stdout\n")
    os.write(2, b"said on stderr\n")
    return payload


def facts(payload: Any, scratch: Path) -> Any:
    """What the environment of a task looks like."""
    import torch

    total = float(torch.ones(1 << 18).exp().sum())  # a parallel region: hangs if OpenMP was used before the fork
    return {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "group": os.getpgid(0),
        "cwd": os.getcwd(),
        "scratch": str(scratch),
        "environ": dict(os.environ),
        "path": sys.path,
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.is_initialized(),
        "descriptors": sorted(int(d) for d in os.listdir("/proc/self/fd")),
        "sum": total,
    }


def raises(payload: Any, scratch: Path) -> Any:
    raise ValueError("no such layout")


def segfault(payload: Any, scratch: Path) -> Any:
    ctypes.string_at(0)


def abort(payload: Any, scratch: Path) -> Any:
    os.abort()


def recurse(payload: Any, scratch: Path) -> Any:
    """Overflow the C stack."""
    sys.setrecursionlimit(1 << 30)
    libc = ctypes.CDLL(None)
    compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    numbers = (ctypes.c_int * 2)(2, 1)

    def again(a: int, b: int) -> int:
        libc.qsort(numbers, 2, 4, callback)
        return 0

    callback = compare(again)
    libc.qsort(numbers, 2, 4, callback)


def exit_early(payload: Any, scratch: Path) -> Any:
    os._exit(payload)


def sys_exit(payload: Any, scratch: Path) -> Any:
    sys.exit(payload)


def close_everything(payload: Any, scratch: Path) -> Any:
    os.closerange(0, 256)
    return "unheard"


def scribble(payload: Any, scratch: Path) -> Any:
    """Write garbage to every descriptor."""
    for descriptor in range(256):
        try:
            os.write(descriptor, b"\xff" * 64)
        except OSError:
            continue
    return "unheard"


def too_large(payload: Any, scratch: Path) -> Any:
    return "x" * payload


def not_plain(payload: Any, scratch: Path) -> Any:
    return {"set": {1}}


def hang(payload: Any, scratch: Path) -> Any:
    """Ignore every signal that can be ignored, with a grandchild, whose pid goes to the file ``payload``."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    grandchild = subprocess.Popen(["sleep", "600"])
    Path(payload).write_text(f"{os.getpid()} {grandchild.pid}")
    time.sleep(600)


def leave_grandchild(payload: Any, scratch: Path) -> Any:
    return subprocess.Popen(["sleep", "600"]).pid


def kill_parent(payload: Any, scratch: Path) -> Any:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


def allocate(payload: Any, scratch: Path) -> Any:
    return len(bytearray(payload))


def grow(payload: Any, scratch: Path) -> Any:
    """Write one byte far into a file, then one beyond what any file may have; sparse, so that it costs no room."""
    written = 0
    with open(scratch / "grows", "wb", buffering=0) as file:
        try:
            for at in (1 << 20, 1 << 40):
                file.seek(at)
                written += file.write(b"x")
        except OSError as error:
            return {"error": error.strerror, "bytes": written}
    return {"error": "", "bytes": written}


def device_facts(payload: Any, scratch: Path) -> Any:
    """The CPU's type, why there is no GPU, and whether CUDA was touched for the former."""
    import torch

    from torch_forge.errors import DeviceError
    from torch_forge.machine.device import device_info
    from torch_forge.settings import Settings

    cpu = device_info("cpu", Settings.resolve(), measure=False)
    touched = torch.cuda.is_initialized()
    try:
        return {"cpu": cpu.type, "touched": touched, "gpu": device_info("cuda", Settings.resolve(), measure=False).type}
    except DeviceError as error:
        return {"cpu": cpu.type, "touched": touched, "gpu": str(error)}


GPU_LAUNCH = """
extern "C" int forge_launch(const ForgeTensor* in, const ForgeTensor* out, const int64_t* dims, int64_t, int64_t, void*,
                            void* stream) {
  relu<<<(unsigned)((dims[0] + 255) / 256), 256, 0, (cudaStream_t)stream>>>(
      (const float*)in[0].data, (float*)out[0].data, dims[0]);
  return cudaGetLastError() == cudaSuccess ? FORGE_OK : FORGE_CUDA_ERROR;
}
"""
GPU_KERNELS = {
    name: f"""#include "forge.h"
__global__ void relu(const float* x, float* y, int64_t n) {{
  int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i < n) y[i + {offset}] = fmaxf(x[i], 0.f);
}}
{GPU_LAUNCH}"""
    for name, offset in (("relu", "0"), ("out_of_bounds", "(1ll << 44)"))
}


def launch_on_gpu(payload: Any, scratch: Path) -> Any:
    """Run the kernel in the library ``payload`` once and compare."""
    import torch

    from torch_forge.machine.launch import ForgeTensor
    from torch_forge.machine.loader import load_kernel

    x = torch.randn(1 << 20, device="cuda")
    y = torch.zeros_like(x)
    size, stride = (ctypes.c_int64 * 1)(x.numel()), (ctypes.c_int64 * 1)(1)
    tensors = [(ForgeTensor * 1)(ForgeTensor(t.data_ptr(), size, stride, 1, 1)) for t in (x, y)]
    launch = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 2, *[ctypes.c_void_p] * 2)(
        load_kernel(payload)
    )
    code = launch(*tensors, size, 0, 1, None, torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    return {"right": code == 0 and torch.equal(y, x.relu())}
