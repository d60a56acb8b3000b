"""Settings: every layer (defaults, environment, arguments) merged once into one frozen object.

This is the only module that reads the environment for torch_forge; everything else is given ``Settings``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from torch_forge.errors import UsageError

ENVIRONMENT: Mapping[str, tuple[str, str]] = {
    "TORCH_FORGE_CACHE_DIR": (
        "cache_dir",
        "where winners are kept; default: the user cache directory (XDG_CACHE_HOME is honoured)",
    ),
    "TORCH_FORGE_DISABLE": ("disabled", "1: never tune and never install, every model runs as it is"),
    "TORCH_FORGE_STRICT": ("strict", "1: a missing compiler or an unusable cache is an error instead of a warning"),
    "TORCH_FORGE_SKIP_CACHE": ("skip_cache", "1: neither read nor write the cache"),
    "TORCH_FORGE_BUDGET_S": ("budget_s", "seconds one autotune call may take"),
    "TORCH_FORGE_SEED": ("seed", "seed of inputs and search"),
    "TORCH_FORGE_PROGRESS": ("progress", "auto, on or off"),
    "TORCH_FORGE_SHADOW": ("shadow_every", "compare one forged call in N with eager at run time; 0: never"),
    "TORCH_FORGE_PEERS": (
        "peers",
        "both: a kernel must beat eager and torch.compile; eager: only eager, and tuning is quicker",
    ),
    "TORCH_FORGE_SANDBOX": (
        "sandbox",
        "auto: confine candidates with what the system offers; require: run none where that is too little; off: do not",
    ),
    "TORCH_FORGE_TIMING": (
        "timing",
        "protocol: a winner is confirmed by the whole timing protocol, in two more processes; brief: it is timed once more",
    ),
    "TORCH_FORGE_MARCH": ("march", "instruction set for CPU kernels, as g++ -march; default native"),
    "MAX_JOBS": ("max_jobs", "most compilers at once; default: cores and memory decide"),
    "CXX": ("cxx", "host C++ compiler; default g++"),
    "CUDA_HOME": ("cuda_home", "CUDA toolkit to try first"),
    "TORCH_CUDA_ARCH_LIST": ("cuda_arch_list", "GPU architectures to build for; default: the device in use"),
}
"""Variable -> (field, meaning). Variables that other tools define keep their meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Resolved settings; see ``ENVIRONMENT`` for the meanings."""

    cache_dir: Path
    disabled: bool = False
    strict: bool = False
    skip_cache: bool = False
    budget_s: float = 120.0
    """Wall-clock seconds for one autotune call."""
    seed: int = 0
    progress: str = "auto"
    shadow_every: int = 0
    peers: str = "both"
    timing: str = "protocol"
    sandbox: str = "auto"
    """``require`` is for source that nobody vouches for; see ``records.sandbox.MINIMUM``."""
    march: str = "native"
    max_jobs: int = 0
    """0: decided from cores and memory."""
    cxx: str = ""
    """Empty: search."""
    cuda_home: str = ""
    cuda_arch_list: str = ""
    build_timeout_s: float = 120.0
    """Limit for one compiler run."""
    trial_timeout_s: float = 60.0
    """Limit for one candidate's check or timing."""

    @classmethod
    def resolve(cls, environ: Mapping[str, str] | None = None, **arguments: Any) -> Settings:
        """Defaults, then the environment, then arguments that are not None. Raises UsageError on a value of the wrong
        form.
        """
        environ = os.environ if environ is None else environ
        settings = cls(cache_dir=default_cache_dir(environ))
        types = {f.name: type(getattr(settings, f.name)) for f in fields(cls)}
        layer: dict[str, Any] = {}
        for variable, (name, _) in ENVIRONMENT.items():
            text = environ.get(variable, "")
            if text:
                layer[name] = _parse(variable, text, types[name])
        unknown = sorted(set(arguments) - set(types))
        if unknown:
            raise UsageError(f"unknown settings: {', '.join(unknown)}", advice=f"Known: {', '.join(sorted(types))}.")
        layer.update({k: v for k, v in arguments.items() if v is not None})
        return replace(settings, **layer)._checked()

    def _checked(self) -> Settings:
        choices = {
            "timing": ("protocol", "brief"),
            "peers": ("both", "eager"),
            "progress": ("auto", "on", "off"),
            "sandbox": ("auto", "require", "off"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise UsageError(f"{name}={getattr(self, name)!r} is not known", advice=f"Use one of: {', '.join(allowed)}.")
        return self

    def with_(self, **changes: Any) -> Settings:
        """A copy with some fields changed; None leaves a field as it is."""
        return replace(self, **{k: v for k, v in changes.items() if v is not None})


def default_cache_dir(environ: Mapping[str, str]) -> Path:
    """``$XDG_CACHE_HOME/torch_forge`` or ``~/.cache/torch_forge``."""
    base = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".cache")
    return Path(base) / "torch_forge"


def _parse(variable: str, text: str, wanted: Any) -> Any:
    try:
        if wanted is bool:
            return {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}[
                text.lower()
            ]
        if issubclass(wanted, Path):
            return Path(text).expanduser()
        return wanted(text)
    except (KeyError, ValueError) as error:
        raise UsageError(f"{variable}={text!r} is not a valid {wanted.__name__}") from error
