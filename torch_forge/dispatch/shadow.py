"""Watch a kernel while it serves: run the original beside it on one call in N and report the first disagreement."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from torch import Tensor

from torch_forge.errors import UsageError

Compare = Callable[[Sequence[Tensor], Sequence[Tensor]], bool]
"""(outputs of the kernel, outputs of the original) -> whether they agree."""


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
