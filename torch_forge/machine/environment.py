"""Which environment variables reach the workers, and which of those a confined task.

Names are listed, not forbidden ones left out: an API key is nothing that a kernel needs, whatever it is called.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, MutableMapping

_COMPILING = (
    "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "CC", "CXX",
)  # fmt: skip
_RUNNING = (
    "PATH", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONUTF8",
    "PYTHONHASHSEED", "PYTHONIOENCODING", "PYTHONWARNINGS", "PYTHONNOUSERSITE", "PYTHONDONTWRITEBYTECODE",
    "PYTHONUNBUFFERED",
)  # fmt: skip
_FAMILIES = (
    "LC_", "CUDA_", "NVIDIA_", "NVCC_", "TORCH", "PYTORCH_", "OMP_", "KMP_", "GOMP_", "MKL_", "ATEN_", "DNNL_", "MALLOC_",
    "TRITON_", "GCC_", "NIX_",
)  # fmt: skip
"""Beginnings of names that tune compilers and libraries."""
_AT_HOME = (
    "HOME",
    "SHELL",
    "TERM",
    "TMPDIR",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "LD_PRELOAD",
)
"""For tasks without foreign code only."""
_CACHES = (
    "TRITON_CACHE_DIR", "TRITON_DUMP_DIR", "TRITON_OVERRIDE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR",
    "TORCH_HOME", "CUDA_CACHE_PATH",
)  # fmt: skip
"""Folders of the user's that a confined task cannot write to, and is not to read what others have compiled there."""
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|PRIVATE|AUTH", re.IGNORECASE)
_OURS = "TORCH_FORGE_"


def _confined(name: str) -> bool:
    known = name in _RUNNING or name in _COMPILING or name.startswith(_FAMILIES)
    return known and not name.startswith(_OURS) and not _SECRET.search(name)


def process_environment() -> list[bytes]:
    """The C library's own ``environ``, sorted: what ``setenv`` in native code changes and ``os.environ`` does not show."""
    table = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    found: list[bytes] = []
    while (entry := table[len(found)]) is not None:
        found.append(entry)
    return sorted(found)


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """What the workers' parent sees of ``environ``."""
    kept = {n: v for n, v in environ.items() if n in _AT_HOME or _confined(n)}
    # numpy's OpenBLAS starts its threads at import; the parent must have only one to fork soundly.
    return {**{n: v for n, v in kept.items() if not _SECRET.search(n)}, "OPENBLAS_NUM_THREADS": "1"}


def scrub(environ: MutableMapping[str, str], *, home: str) -> None:
    """Leave what a confined task may see, with its scratch folder for a home."""
    for name in [n for n in environ if not _confined(n) or n in _CACHES]:
        del environ[name]
    environ["HOME"] = home
    environ["TRITON_HOME"] = home  # a triton that was imported before has looked up the home there was then
