"""Tasks that do what a Triton candidate's first call does, as far as it goes without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def compile_as_candidate(payload: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """payload: ``path`` of a file, ``kernel`` in it, ``signature``, ``constants``, ``warps``.

    Returns the size of the kernel for an H100 or H200, where the launcher was put, and what ``ldconfig`` says first.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia import driver
    from triton.compiler import ASTSource
    from triton.runtime.build import compile_so_from_file

    module = ModuleType("candidate")
    module.__file__ = payload["path"]
    sys.modules["candidate"] = module
    exec(compile(Path(payload["path"]).read_text(), payload["path"], "exec"), module.__dict__)
    constants = payload["constants"]
    signature = {**payload["signature"], **dict.fromkeys(constants, "constexpr")}
    compiled = triton.compile(
        ASTSource(getattr(module, payload["kernel"]), signature, constants),
        target=GPUTarget("cuda", 90, 32),
        options={"num_warps": payload["warps"]},
    )
    launcher = compile_so_from_file(
        os.path.join(os.path.dirname(driver.__file__), "driver.c"),
        "cuda_utils",
        library_dirs=driver.library_dirs(),
        include_dirs=driver.include_dirs,
        libraries=driver.libraries,
    )
    libraries = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    return {
        "cubin_bytes": len(compiled.asm["cubin"]),
        "launcher": os.path.relpath(os.path.realpath(launcher), os.path.realpath(scratch)),
        "libraries": libraries.splitlines()[0],
    }
