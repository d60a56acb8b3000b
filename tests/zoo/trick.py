"""What a trick is: a candidate that is wrong, or does harm, and that a harness without care takes for a good kernel."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

Scene = Callable[[Path], AbstractContextManager[Callable[[], bool]]]
"""Prepares a folder (and what else a trick is to act upon) and gives the question whether the trick did its harm."""


@dataclass(frozen=True, kw_only=True)
class Trick:
    """One candidate and what must become of it."""

    name: str
    section: str
    """Number of the exploit or failure in the corpus that ``docs/trust.md`` is built on."""
    reference: Callable[..., Any]
    sample: Callable[[], tuple[torch.Tensor, ...]]
    """The tensors that a naive harness would use; the judge takes their shapes, strides and types only."""
    source: str
    """``@DIR@`` stands for a folder of this trick alone, ``@PORT@`` for a port that the test listens on."""
    gates: tuple[str, ...]
    """Each of these catches it when all others of them are off. Empty: an honest control."""
    kind: Literal["cpp", "cu", "py"] = "cpp"
    timing: bool = False
    """The fraud is in the time; everything that is checked without a clock is in order."""
    any_size: bool = False
    """It claims to serve other sizes than the sample's."""
    needs: tuple[Literal["gpu", "two gpus", "memory"], ...] = ()
    candidate_first: bool = False
    """It fools the harness that runs the candidate before the reference, on the same tensors."""
    by_chance: bool = False
    """Which of its gates catches it depends on the moment, so that none of them is asked to do it alone."""
    harmless: str = ""
    """Why its harm is not done whatever gates are off, so that being accepted is all it can get; empty: it is done."""
    scene: Scene | None = None
    """What it does besides computing; None if being accepted is all it wants."""


EVERYWHERE = (
    "is right", "special values", "wide values", "patterns", "mixed regimes", "misaligned", "same pointers",
)  # fmt: skip
"""The gates of a trick whose result is wrong on ordinary inputs, and so on all others too."""


def floats(*shape: int, seed: int = 0) -> torch.Tensor:
    """N(0, 1), float32."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


_HEAD = """
#include "forge.h"
"""
_LAUNCH = """
static inline int64_t count(const ForgeTensor& t) {
  int64_t n = 1;
  for (int d = 0; d < t.ndim; ++d) n *= t.sizes[d];
  return n;
}
extern "C" int forge_launch(const ForgeTensor* in, const ForgeTensor* out, const int64_t* dims, int64_t config,
                            int64_t threads, void* workspace, void* stream) {
  const float* x = (const float*)in[0].data;
  float* y = (float*)out[0].data;
  const int64_t n = count(in[0]);
"""


def kernel(body: str, top: str = "") -> str:
    """A source under the entry-point contract: x and y are the first input and output, n the number of x's elements.

    ``top`` stands before forge_launch: includes, state, device code.
    """
    return f"{_HEAD}{top.strip()}{_LAUNCH}{body.rstrip()}\n  return FORGE_OK;\n}}\n"
