"""torch_forge: faster kernels for a PyTorch model, proved right before they are used.

    result = torch_forge.autotune(model, sample)     # tune a model in place; result.summary(), result.revert()
    fast = torch_forge.forge(function, sample)       # tune one function
    @torch_forge.optimize                            # use what is known of a function or module class
    torch_forge.judge(reference, candidate, sample)  # check and time somebody's kernel

Importing this package imports neither torch nor anything heavy; the names below are loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from torch_forge.errors import ForgeError
from torch_forge.settings import Settings
from torch_forge.version import __version__

if TYPE_CHECKING:
    from torch_forge.functions import forge, optimize
    from torch_forge.judging import judge
    from torch_forge.pipeline import autotune
    from torch_forge.profiling.workload import Call

_LAZY = {
    "autotune": "torch_forge.pipeline",
    "forge": "torch_forge.functions",
    "optimize": "torch_forge.functions",
    "judge": "torch_forge.judging",
    "Call": "torch_forge.profiling.workload",
}

__all__ = ["Call", "ForgeError", "Settings", "__version__", "autotune", "forge", "judge", "optimize"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'torch_forge' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
