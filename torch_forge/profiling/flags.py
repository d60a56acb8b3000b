"""torch's process-wide switches that a model, or capturing it, may flip: read once, put back if they differ.

A flag is written only if it changed, and the TF32 switches in the form that the user set: torch refuses to read the old
form once the new one disagrees with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

Flag = tuple[Callable[[], Any], Callable[[Any], Any]]


def _attribute(owner: Any, name: str) -> Flag:
    return (lambda: getattr(owner, name)), (lambda value: setattr(owner, name, value))


def _legacy(flag: Flag) -> Flag:
    """None where torch refuses to tell the old form because the new one is in use; then only the new form is put back."""
    get, put = flag

    def readable() -> Any:
        try:
            return get()
        except RuntimeError:
            return None

    return readable, (lambda value: put(value) if value is not None else None)


def _autocast(device: str) -> list[Flag]:
    return [
        (lambda: torch.is_autocast_enabled(device), lambda value: torch.set_autocast_enabled(device, value)),
        (lambda: torch.get_autocast_dtype(device), lambda value: torch.set_autocast_dtype(device, value)),
    ]


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _flags() -> list[Flag]:
    backends: Any = torch.backends
    return [
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.get_num_threads, torch.set_num_threads),
        (
            lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
            lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
        ),
        # torch.compile writes its default there, and child processes of the user's would inherit it.
        (lambda: os.environ.get("TORCHINDUCTOR_CACHE_DIR"), partial(_set_variable, "TORCHINDUCTOR_CACHE_DIR")),
        (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
        *_autocast("cpu"),
        *_autocast("cuda"),
        *(_attribute(backends.cudnn, name) for name in ("enabled", "benchmark", "deterministic")),
        # Old form first: setting it also moves the new one, which is then put right.
        _legacy((torch.get_float32_matmul_precision, torch.set_float32_matmul_precision)),
        _legacy(_attribute(backends.cuda.matmul, "allow_tf32")),
        _legacy(_attribute(backends.cudnn, "allow_tf32")),
        _attribute(backends, "fp32_precision"),
        _attribute(backends.mkldnn.matmul, "fp32_precision"),
        _attribute(backends.cuda.matmul, "fp32_precision"),
        _attribute(backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"),
        _attribute(backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
        _attribute(backends.cudnn.conv, "fp32_precision"),
        _attribute(backends.cudnn.rnn, "fp32_precision"),
        (backends.cuda.flash_sdp_enabled, backends.cuda.enable_flash_sdp),
        (backends.cuda.mem_efficient_sdp_enabled, backends.cuda.enable_mem_efficient_sdp),
        (backends.cuda.math_sdp_enabled, backends.cuda.enable_math_sdp),
        (backends.cuda.cudnn_sdp_enabled, backends.cuda.enable_cudnn_sdp),
    ]


@contextmanager
def saved_flags() -> Iterator[None]:
    """Every flag above has its old value at the end of the block."""
    saved = [(get, put, get()) for get, put in _flags()]
    try:
        yield
    finally:
        for get, put, value in saved:
            if get() != value:
                put(value)
