"""Watch a kernel while it serves: run the original beside it on one call in N and report the first disagreement."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torch_forge.errors import UsageError

Compare = Callable[[Sequence[Tensor], Sequence[Tensor]], bool]
"""(outputs of the kernel, outputs of the original) -> whether they agree."""


SLACK = 16.0
"""Units in the last place, of the largest element, by which a kernel and the original may differ at run time."""


def agree(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> bool:
    """Same shapes and types, NaN and infinities at the same places, the rest within ``SLACK`` of the largest element.

    Coarser than the verdict before installation: it is there to notice a kernel that went wrong, at little cost.
    """
    return len(found) == len(wanted) and all(_close(a, b) for a, b in zip(found, wanted, strict=True))


def _close(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point() or a.numel() == 0:
        return torch.equal(a, b)
    finite = torch.isfinite(b)
    if not torch.equal(torch.isfinite(a), finite) or not torch.equal(a[~finite].nan_to_num(), b[~finite].nan_to_num()):
        return False
    bound = SLACK * torch.finfo(a.dtype).eps * float(b[finite].abs().max()) if finite.any() else 0.0
    return bool((a[finite].double() - b[finite].double()).abs().le(bound).all())


class ShadowGuard:
    """Decides which calls are compared; one instance per installed case. The first call is always compared."""

    def __init__(self, every_n: int, compare: Compare) -> None:
        if every_n < 1:
            raise UsageError(f"cannot compare one call in {every_n}", advice="Pass 1 or more, or no guard at all.")
        self._every_n = every_n
        self._calls = itertools.count()
        self.compare = compare

    def due(self) -> bool:
        """Count one call; whether it is to be compared. Safe to call from several threads."""
        return next(self._calls) % self._every_n == 0
