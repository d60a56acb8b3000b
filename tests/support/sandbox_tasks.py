"""Tasks for the sandbox's tests: each tries one thing that a candidate might, and says whether it worked."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch_forge.machine.sandbox import lock, syscalls
from torch_forge.machine.worker_child import Dialogue

WORKED = "worked"
PTRACE_SEIZE = 0x4206


def _tried(action: Callable[[], object]) -> str:
    """``worked``, or the name of the exception."""
    try:
        action()
    except OSError as error:
        return type(error).__name__
    return WORKED


def connect(payload: Any, scratch: Path) -> str:
    def attempt() -> None:
        with socket.create_connection(("127.0.0.1", payload), timeout=5):
            pass

    return _tried(attempt)


def connect_abstract(payload: Any, scratch: Path) -> str:
    def attempt() -> None:
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(f"\0{payload}")

    return _tried(attempt)


def send_to_named_socket(payload: Any, scratch: Path) -> str:
    """With one of a pair of datagram sockets, which may send to any socket that has a name."""

    def attempt() -> None:
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        with one, other:
            one.sendto(b"out", payload)

    return _tried(attempt)


def read(payload: Any, scratch: Path) -> str:
    return _tried(lambda: Path(payload).read_bytes())


def write(payload: Any, scratch: Path) -> str:
    return _tried(lambda: Path(payload).write_text("spoiled"))


def truncate(payload: Any, scratch: Path) -> str:
    return _tried(lambda: os.truncate(payload, 0))


def chmod(payload: Any, scratch: Path) -> str:
    return _tried(lambda: os.chmod(payload, 0o777))


def see_processes(payload: Any, scratch: Path) -> str:
    return WORKED if sum(name.isdecimal() for name in os.listdir("/proc")) > 2 else "none"


def write_sysctl(payload: Any, scratch: Path) -> str:
    """Without changing anything: what is there is written."""
    path = Path("/proc/sys/kernel/core_pattern")
    return _tried(lambda: path.write_text(path.read_text()))


def send_signal(payload: Any, scratch: Path) -> str:
    return _tried(lambda: os.kill(payload, 0))


def trace(payload: Any, scratch: Path) -> str:
    return _tried(lambda: syscalls.call("ptrace", PTRACE_SEIZE, payload, 0, 0))


def look_at_shared_memory(payload: Any, scratch: Path) -> str:
    """The System V segment with the id ``payload``."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    return WORKED if libc.shmat(payload, None, 0) != ctypes.c_void_p(-1).value else "OSError"


def gain_privileges(payload: Any, scratch: Path) -> str:
    """By a mount of one's own, as any user may in a user namespace."""

    def attempt() -> None:
        syscalls.call("unshare", 0x00020000)
        syscalls.call("mount", b"tmpfs", str(scratch).encode(), b"tmpfs", 0, None)

    return _tried(attempt)


def open_many_files(payload: Any, scratch: Path) -> str:
    return WORKED if resource.getrlimit(resource.RLIMIT_NOFILE)[0] > payload else "limited"


def run_program(payload: Any, scratch: Path) -> str:
    return _tried(lambda: subprocess.run(["true"], check=True))


def fork(payload: Any, scratch: Path) -> str:
    def attempt() -> None:
        if (pid := os.fork()) == 0:
            os._exit(0)
        os.waitpid(pid, 0)

    return _tried(attempt)


def make_link(payload: Any, scratch: Path) -> str:
    return _tried(lambda: (scratch / "link").symlink_to(payload))


def move(payload: Any, scratch: Path) -> str:
    """From one folder of the scratch folder to another."""
    (scratch / "a").mkdir()
    (scratch / "b").mkdir()
    (scratch / "a" / "file").touch()
    return _tried(lambda: (scratch / "a" / "file").replace(scratch / "b" / "file"))


def many_processes(payload: Any, scratch: Path) -> int:
    """How many there can be at once, up to ``payload``."""
    count = 0
    while count < payload:
        try:
            os.posix_spawn("/bin/sleep", ["sleep", "600"], {})
        except OSError:
            break
        count += 1
    return count


def system_calls(payload: Any, scratch: Path) -> list[str]:
    """Those of the names in ``payload`` that are not refused outright. Arguments are zero: none does anything."""
    answers = {}
    for name in payload:
        try:
            syscalls.call(name, 0, 0, 0, 0, 0, 0)
            answers[name] = 0
        except OSError as error:
            answers[name] = error.errno
    return [name for name, answer in answers.items() if answer != 1]


def surroundings(payload: Any, scratch: Path) -> dict[str, Any]:
    try:
        initial = Path("/proc/self/environ").read_bytes().decode(errors="replace")
    except PermissionError:  # a process that is not to be dumped belongs to root there
        initial = ""
    descriptors = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            descriptors[name] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the listing's own
            continue
    there = [name for name in payload if os.path.exists(f"/{name}")]
    return {"environ": dict(os.environ), "initial": initial, "descriptors": descriptors, "there": there}


def leave_daemon(payload: Any, scratch: Path) -> int:
    """A process in a session of its own that nobody waits for; its pid outside."""
    receive, send = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(send, os.readlink("/proc/self").encode())
            time.sleep(600)
        os._exit(0)
    return int(os.read(receive, 32))


def replace_log(payload: Any, scratch: Path) -> None:
    """By a link to the file ``payload``."""
    (scratch / "log.txt").unlink()
    (scratch / "log.txt").symlink_to(payload)


def lock_later(payload: Any, scratch: Path) -> list[str]:
    """Read a file before and after: what a task with a GPU does at its start is still free."""
    before = read(payload, scratch)
    lock.lock_down()
    return [before, read(payload, scratch)]


def compile_then_close(payload: Any, scratch: Path) -> list[str]:
    before = run_program(payload, scratch)
    lock.close_compilers()
    return [before, run_program(payload, scratch)]


def never_lock(payload: Any, scratch: Path) -> None:
    (scratch / "ran").write_text("")


def exit_as_if_unlocked(payload: Any, scratch: Path) -> None:
    os._exit(lock.EXIT_STATUS)


def compute(payload: Any, scratch: Path) -> dict[str, Any]:
    """What honest work needs: torch with all its threads, linear algebra, late imports, files in scratch."""
    import torch
    from torch import fft

    torch.set_num_threads(8)
    x = torch.randn(512, 512, dtype=torch.float64)
    total = float((x @ torch.linalg.inv(x)).trace())
    torch.save(fft.fft(x), scratch / "x.pt")
    same = torch.equal(torch.load(scratch / "x.pt"), fft.fft(x))
    shared = torch.zeros(8).share_memory_()
    threads = len(os.listdir("/proc/self/task"))
    return {
        "trace": round(total),
        "same": same,
        "threads": threads,
        "shared": bool(shared.is_shared()),
    }


def converse(payload: Any, scratch: Path, dialogue: Dialogue) -> None:
    for _ in dialogue:
        dialogue.reply(os.getpid())


def hang(payload: Any, scratch: Path) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (scratch / "pid").write_text(os.readlink("/proc/self"))
    time.sleep(600)


def run_kernel(payload: Any, scratch: Path) -> dict[str, Any]:
    """A kernel that squares with OpenMP, in the library ``payload``."""
    import torch

    from torch_forge.machine.launch import ForgeTensor
    from torch_forge.machine.loader import load_kernel

    x = torch.randn(1 << 16)
    y = torch.zeros_like(x)
    size, stride = (ctypes.c_int64 * 1)(x.numel()), (ctypes.c_int64 * 1)(1)
    tensors = [(ForgeTensor * 1)(ForgeTensor(t.data_ptr(), size, stride, 1, 1)) for t in (x, y)]
    launch = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 2, *[ctypes.c_void_p] * 2)(
        load_kernel(payload)
    )
    code = launch(*tensors, size, 0, 8, None, None)
    threads = len(os.listdir("/proc/self/task"))  # before torch has a region of its own, with fewer
    return {"right": code == 0 and torch.equal(y, x * x), "threads": threads}


def work_on_gpu(payload: Any, scratch: Path) -> dict[str, Any]:
    """Start CUDA, lock down, and use what is used first only then; try a file, a socket and a process in between."""
    import torch

    x = torch.randn(1024, 1024, device="cuda")
    lock.lock_down()
    refused = {"read": read(payload, scratch), "fork": fork(None, scratch), "socket": connect(9, scratch)}
    product = (x @ x).double()  # loads cuBLAS
    right = torch.allclose(product, x.double() @ x.double(), atol=1e-2)
    pinned = torch.empty(1 << 20, pin_memory=True)
    more = torch.zeros(1 << 28, device="cuda", dtype=torch.uint8)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(torch.cuda.Stream()):
        begin.record()
        sorted_, _ = x.flatten().sort()
        end.record()
    torch.cuda.synchronize()
    ordered = bool((sorted_[1:] >= sorted_[:-1]).all())
    used = torch.cuda.memory_reserved() >= more.numel() and pinned.is_pinned() and begin.elapsed_time(end) > 0
    return {
        "refused": refused,
        "right": right and ordered and used,
        "threads": len(os.listdir("/proc/self/task")),
    }


def hang_on_gpu(payload: Any, scratch: Path) -> None:
    """With a context that has memory, locked down."""
    import torch

    torch.zeros(1 << 28, device="cuda", dtype=torch.uint8)
    pid = os.readlink("/proc/self")
    lock.lock_down()
    (scratch / "pid").write_text(pid)
    time.sleep(600)
