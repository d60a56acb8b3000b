"""What confined code may read: the system's programs and libraries, Python, torch, CUDA and this package.

Asked in the workers' parent, which has imported all that there is to import; its children inherit the answer.
"""

from __future__ import annotations

import glob
import os
import shutil
import sys
from collections.abc import Iterable
from functools import cache

_SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store", "/run/opengl-driver", "/sys",
    "/opt/cuda", "/etc/alternatives", "/etc/group", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d",
    "/etc/ld.so.preload", "/etc/localtime", "/etc/nsswitch.conf", "/etc/nvidia", "/etc/os-release", "/etc/passwd",
    "/etc/timezone",
)  # fmt: skip
_FOLDERS_OF_LISTS = ("LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "COMPILER_PATH")
_WIDE = ("/", "/tmp", "/var/tmp")  # noqa: S108 -- never to be shown
_PLACES = ("CUDA_HOME", "CUDA_PATH", "TRITON_PTXAS_PATH", "TRITON_LIBDEVICE_PATH", "TRITON_LIBCUDA_PATH")
"""Variables that name a folder or a file."""
_COMPILERS = ("cc", "gcc", "g++", "clang")
"""Programs that Python packages start by name (triton compiles its launchers); they may be installed anywhere."""
_PACKAGES = ("torch", "numpy", "triton", "nvidia", "torch_forge")

PLAIN_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_CUDA_DEVICES = ("/dev/nvidia*", "/dev/nvidia-caps/*", "/dev/nvidia-caps-imex-channels/*", "/dev/dxg")

SHARED_PROC = (
    "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/version", "/proc/filesystems", "/proc/devices",
    "/proc/modules", "/proc/driver", "/proc/sys",
)  # fmt: skip
"""What may be read where ``/proc`` is everybody's: what is about this process or about the machine."""


@cache
def toolchain() -> tuple[str, ...]:
    """Absolute paths that exist, sorted, none beneath another. Links are kept as they are named."""
    named = [*_SYSTEM, sys.prefix, sys.base_prefix, sys.exec_prefix, *_package_folders(), *_loaded_library_folders()]
    named += [p for p in sys.path if os.path.basename(p) in {"site-packages", "dist-packages"}]
    for variable in _FOLDERS_OF_LISTS:
        named += os.environ.get(variable, "").split(os.pathsep)
    named += [os.environ.get(variable, "") for variable in _PLACES]
    named += [p for name in _COMPILERS if (program := shutil.which(name)) for p in installation(program)]
    return outermost(p for p in named if not is_too_wide(p))


def outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """Those of the absolute paths that exist and lie beneath no other of them, sorted."""
    kept: list[str] = []
    for path in sorted({os.path.normpath(p) for p in paths if os.path.isabs(p)}):
        if not any(path.startswith(f"{k}/") for k in kept) and os.path.exists(path):
            kept.append(path)
    return tuple(kept)


def devices(*, cuda: bool) -> tuple[str, ...]:
    """Device nodes that are there: the harmless ones and, if asked for, those of GPUs."""
    patterns = (*PLAIN_DEVICES, *(_CUDA_DEVICES if cuda else ()))
    return tuple(p for pattern in patterns for p in sorted(glob.glob(pattern)) if not os.path.isdir(p))


def _package_folders() -> list[str]:
    """Of what may be installed in a place of its own, as a checkout is."""
    modules = (sys.modules.get(name) for name in _PACKAGES)
    return [folder for module in modules if module is not None for folder in getattr(module, "__path__", ())]


def _loaded_library_folders() -> list[str]:
    with open("/proc/self/maps") as file:
        mapped = {line.split(maxsplit=5)[-1].rstrip("\n") for line in file if ".so" in line}
    return sorted({os.path.dirname(path) for path in mapped if path.startswith("/")})


def installation(program: str) -> tuple[str, ...]:
    """Folders of a program that is given by its path, as it is named and as it was installed: ``bin`` and what is beside it.

    Only the file where a folder would show a home.
    """
    real = os.path.realpath(program)
    beside = os.path.dirname(os.path.dirname(real))
    folders = (
        os.path.dirname(program),
        beside if os.path.basename(os.path.dirname(real)) == "bin" else os.path.dirname(real),
    )
    return (program, real, *(f for f in folders if not is_too_wide(f)))


def is_too_wide(path: str) -> bool:
    """Whether the path is so wide that a home lies beneath it, or is one."""
    home = os.path.expanduser("~")
    return not path or os.path.normpath(path) in _WIDE or f"{home}/".startswith(f"{path.rstrip('/')}/")
