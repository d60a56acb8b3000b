"""What is known of a published kernel, and how it is put before the judge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

Input = tuple[tuple[int, ...], torch.dtype]
"""Shape and type."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """One kernel in our own words; no line of the original is in it."""

    name: str
    where: str
    """Who published it, and when."""
    claim: str
    """What they say of it."""
    reference: Callable[..., Any]
    inputs: tuple[Input, ...]
    """At the size of the publication, or close to it."""
    source: str
    kind: Literal["cu", "py"]
    rejected_by: tuple[str, ...] = ()
    """It fails one of these gates. Empty: it is right, and the device decides whether it is faster."""
    why: str
    """Why it is right, or what is wrong with it."""
    any_size: bool = False
    """It serves other sizes too, as the original does."""

    def sample(self, device: str) -> tuple[torch.Tensor, ...]:
        """Tensors that only give shapes, types and the device: contents are the judge's business."""
        return tuple(torch.zeros(shape, dtype=dtype, device=device) for shape, dtype in self.inputs)


def cuda(kernels: str, launch: str) -> str:
    """A source under the entry-point contract. launch: statements of ``forge_launch``, which end with the launches."""
    return f"""
#include <cuda_runtime.h>
#include <float.h>
#include "forge.h"
{kernels.strip()}

extern "C" int forge_launch(const ForgeTensor* in, const ForgeTensor* out, const int64_t* dims, int64_t config,
                            int64_t threads, void* workspace, void* stream) {{
  cudaStream_t queue = (cudaStream_t)stream;
{launch.strip(chr(10)).rstrip()}
  const int error = (int)cudaGetLastError();
  return error ? FORGE_CUDA_ERROR + error : FORGE_OK;
}}
"""
