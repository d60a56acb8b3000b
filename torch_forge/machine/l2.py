"""The part of a GPU's L2 that a process may set aside: lines there outlive a flush by ordinary writes."""

from __future__ import annotations

import ctypes
from functools import cache

_LIMIT_PERSISTING_L2 = 0x06
"""``CU_LIMIT_PERSISTING_L2_CACHE_SIZE``."""


def reset_persisting_l2() -> bool:
    """Nothing persists in the L2 of the current CUDA context any more, nor can; False where the driver cannot do that.

    The calling thread must have a current context.
    """
    driver = _driver()
    if driver is None:
        return False
    limited = driver.cuCtxSetLimit(_LIMIT_PERSISTING_L2, ctypes.c_size_t(0))
    return bool(limited == 0 and driver.cuCtxResetPersistingL2Cache() == 0)


_LIMITS = range(7)
"""Stack, printf buffer, heap, device runtime (2), L2 fetch granularity, persisting L2."""


def device_limits() -> tuple[int, ...]:
    """The limits of the current CUDA context, which outlive a kernel that changes them; -1 for one that is not there."""
    driver, value = _driver(), ctypes.c_size_t()
    if driver is None:
        return ()
    return tuple(value.value if driver.cuCtxGetLimit(ctypes.byref(value), limit) == 0 else -1 for limit in _LIMITS)


@cache
def _driver() -> ctypes.CDLL | None:
    """The driver that torch has loaded already; None where it is too old (before CUDA 11)."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        driver.cuCtxSetLimit.restype = driver.cuCtxResetPersistingL2Cache.restype = ctypes.c_int
        driver.cuCtxGetLimit.restype = ctypes.c_int
    except (OSError, AttributeError):
        return None
    return driver
