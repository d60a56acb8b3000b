"""What a worker does to build: one call of torch's ``load_inline``, in a private directory.

``load_inline`` also loads what it has built, and loading runs the candidate's constructors; that is why it happens here, in
a process that may die, and that from then on starts no program. Its arguments are chosen so that it costs no more than
calling the compiler: no implicit headers, no compiler wrapper, no dependency files, and for a kernel no torch library
behind ``-ltorch`` (see ``stubs``). Without a working ninja ``load_inline`` refuses to work, so the same commands are
run directly.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

# Imported by the workers' parent, once for all tasks; nothing else imports this module.
import torch
from torch.utils import cpp_extension

from torch_forge.machine.sandbox.lock import close_compilers

TORCH_LIBRARIES = ("c10", "c10_cuda", "torch_cpu", "torch_cuda", "torch", "torch_python")


def build(payload: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """Compile and load one library in ``scratch``.

    payload: ``name``, ``cpp`` and ``cuda`` (sources), ``needs_torch``, ``with_cuda``, ``cxx`` (words), ``cuda_home``,
    ``cflags``, ``cuda_cflags``, ``ldflags``, ``include``, ``ninja`` (whether it works).
    Returns ``library`` (its path, None if compiling failed) and ``load_error`` (why it cannot be loaded, or None).
    """
    sys.addaudithook(_before_loading)
    cpp_extension.CUDA_HOME = payload["cuda_home"]
    os.environ["CXX"] = _one_word(payload["cxx"], scratch)
    payload["ldflags"] = ["-Wl,--as-needed", f"-L{stubs(payload, scratch)}", *payload["ldflags"]]
    library = scratch / f"{payload['name']}.so"
    try:
        if payload["ninja"]:
            _with_load_inline(payload, scratch)
        else:
            _directly(payload, scratch, library)
    except (RuntimeError, OSError) as error:
        # The compiler's own words are in the log already; torch's RuntimeError around them says nothing more.
        if library.exists():
            reason = str(error.__cause__ or error)  # torch wraps the loader's message
            sys.stderr.write(f"{reason}\n")
            return {"library": str(library), "load_error": reason}
        if not isinstance(error, RuntimeError):
            raise
        return {"library": None, "load_error": None}
    return {"library": str(library), "load_error": None}


def _before_loading(event: str, arguments: tuple[Any, ...]) -> None:
    """The compilers are done when the first library is loaded; it is ``load_inline`` that decides when that is."""
    if event == "ctypes.dlopen" and arguments[0]:
        close_compilers()


def stubs(payload: dict[str, Any], scratch: Path) -> Path:
    """A folder that the linker searches first.

    Kernels use nothing of torch, but ``load_inline`` always links with it, and reading the symbol tables of two large
    libraries takes longer than the rest of the link. An empty linker script of the same name ends the search. The runtime's
    wheels have ``libcudart.so.13`` without the name that ``-lcudart`` looks for.
    """
    folder = scratch / "stubs"
    folder.mkdir()
    if not payload["needs_torch"]:
        for name in TORCH_LIBRARIES:
            (folder / f"lib{name}.so").write_text("/* not needed */\n")
    if payload["with_cuda"]:
        folders = [Path(payload["cuda_home"], lib) for lib in ("lib64", "lib")]
        if not any((f / "libcudart.so").exists() for f in folders):
            runtime = next((p for f in folders for p in sorted(f.glob("libcudart.so.*"))), None)
            if runtime is not None:
                (folder / "libcudart.so").symlink_to(runtime)
    return folder


def _one_word(cxx: list[str], scratch: Path) -> str:
    """CXX as torch wants it: one program. ``ccache g++`` becomes a script."""
    if len(cxx) == 1:
        return cxx[0]
    script = scratch / "cxx"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(cxx)} "$@"\n')
    script.chmod(0o700)
    return str(script)


def _with_load_inline(payload: dict[str, Any], scratch: Path) -> None:
    cpp_extension.load_inline(  # type: ignore[no-untyped-call]
        name=payload["name"],
        cpp_sources=[payload["cpp"]],
        cuda_sources=[payload["cuda"]] if payload["cuda"] else None,
        extra_cflags=payload["cflags"],
        extra_cuda_cflags=payload["cuda_cflags"],
        extra_ldflags=payload["ldflags"],
        extra_include_paths=payload["include"],
        build_directory=str(scratch),
        verbose=True,  # ninja's output into the log, also of a build that works: ptxas reports there
        with_cuda=payload["with_cuda"],
        is_python_module=False,
        no_implicit_headers=True,
    )


def _directly(payload: dict[str, Any], scratch: Path, library: Path) -> None:
    """The commands that ninja would run, one after the other. Raises RuntimeError at the first that fails."""
    include = [f"-I{folder}" for folder in payload["include"]]
    if payload["needs_torch"]:
        folders = cpp_extension.include_paths("cuda" if payload["with_cuda"] else "cpu")
        include += [word for folder in folders for word in ("-isystem", folder)]
    name = f"-DTORCH_EXTENSION_NAME={payload['name']}"
    cxx = os.environ["CXX"]
    objects = []
    if payload["cpp"]:
        (scratch / "main.cpp").write_text(payload["cpp"])
        objects.append("main.o")
        _command([cxx, name, *include, "-fPIC", "-std=c++20", *payload["cflags"], "-c", "main.cpp", "-o", "main.o"], scratch)
    if payload["cuda"]:
        (scratch / "cuda.cu").write_text(payload["cuda"])
        objects.append("cuda.cuda.o")
        nvcc = os.path.join(payload["cuda_home"], "bin", "nvcc")
        flags = ["--expt-relaxed-constexpr", "--compiler-options", "-fPIC", *payload["cuda_cflags"]]
        _command([nvcc, name, *include, *flags, "-c", "cuda.cu", "-o", "cuda.cuda.o"], scratch)
    libraries = [f"-L{folder}" for folder in cpp_extension.library_paths("cuda" if payload["with_cuda"] else "cpu")]
    if payload["needs_torch"]:
        libraries += ["-lc10", "-ltorch_cpu", "-ltorch", *(["-lc10_cuda", "-ltorch_cuda"] if payload["with_cuda"] else [])]
    if payload["with_cuda"]:
        libraries.append("-lcudart")
    _command([cxx, *objects, "-shared", *payload["ldflags"], *libraries, "-o", str(library)], scratch)
    torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]


def _command(command: list[str], scratch: Path) -> None:
    _say(shlex.join(command))
    done = subprocess.run(command, cwd=scratch, check=False, stdout=1, stderr=1)
    if done.returncode:
        # As ninja reports it, so that one reader serves both.
        status = done.returncode if done.returncode > 0 else 128 - done.returncode
        _say(f"FAILED: [code={status}] {command[-1]}\n{shlex.join(command)}")
        raise RuntimeError("the compiler failed")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
