"""The parent of all workers: a process that has imported torch, never touched CUDA, and forks a child per task.

A fork costs milliseconds where importing torch costs seconds, and a fork is only sound from a process with one thread, no
OpenMP pool and no CUDA. So this process imports and then only waits: it runs no torch operation, and modules named for
preloading must not either (``set_num_threads(1)`` would not be enough: an OpenMP pool that exists at all makes the first
parallel region in a child hang).

Runs as ``main()`` of a fresh interpreter, see ``worker_client.py``; the loop is ``worker_parent.py``, the child's half
``worker_child.py``.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from torch_forge.machine.leftovers import remove_for_good
from torch_forge.machine.sandbox.paths import toolchain
from torch_forge.machine.worker_gate import open_gate
from torch_forge.machine.worker_parent import Parent

READY_BYTES = 1 << 16
"""Size limit of the one message from this process to its client that is not about a task."""


def main() -> NoReturn:
    """Import what was asked for, say so, then fork a child per message on the control socket until the client is gone."""
    options = json.loads(sys.argv[2])
    control = socket.socket(fileno=options["control"])
    sys.path[:0] = options["python_path"]
    try:
        _preload(options["preload"])
    except Exception as error:  # process boundary: the client raises it
        traceback.print_exc()
        _say(control, {"error": f"{type(error).__name__}: {error}"}, options["root"])
        os._exit(1)
    _say(control, {"pid": os.getpid()}, options["root"])
    toolchain()  # asked once, here, where everything is imported; the answer is inherited
    # The parent pid is polled because a process that the client forked may keep the socket open; PR_SET_PDEATHSIG will not
    # do, it fires when the *thread* that started us ends.
    parent = Parent(control, client_lives=lambda: os.getppid() == options["client"], open_gate=open_gate)
    try:
        parent.serve()
        parent.kill_all()
        if not parent.dismissed:
            remove_for_good(Path(options["root"]))
    finally:
        parent.kill_all()
        os._exit(0)


def _say(control: socket.socket, message: dict[str, Any], root: str) -> None:
    """Tell the client; the end of this process, and of the root, if there is none any more."""
    try:
        control.send(json.dumps(message).encode()[:READY_BYTES])
    except OSError:
        remove_for_good(Path(root))
        os._exit(1)


def _preload(modules: list[str]) -> None:
    """Import torch and ``modules``; RuntimeError if one of them touched CUDA."""
    # torch.utils.cpp_extension asks the CUDA driver for devices when it finds a toolkit at import, and a driver that was
    # initialised before a fork is broken after it. An empty CUDA_PATH makes it find none; the build task sets its own.
    hidden = {name: os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")}
    os.environ.pop("CUDA_HOME", None)
    os.environ["CUDA_PATH"] = ""
    for name in ("torch", *modules):
        importlib.import_module(name)
    for name, value in hidden.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    if sys.modules["torch"].cuda.is_initialized():
        raise RuntimeError("a preloaded module initialised CUDA; children forked from here could not use it")
    gc.collect()
    gc.freeze()  # keeps the pages of what is imported shared with the children


def probe(_payload: Any, _scratch: Path) -> dict[str, Any]:
    """A task for ``torch-forge doctor``: that a worker runs torch, and how many threads its parent has (1 is sound)."""
    import torch

    total = float(torch.ones(1 << 16).sum())
    threads = len(os.listdir(f"/proc/{os.getppid()}/task"))
    return {"works": total == 1 << 16, "parent_threads": threads, "cuda": torch.cuda.is_initialized()}  # type: ignore[no-untyped-call]
