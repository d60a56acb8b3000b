"""Prints the verdict from the device."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="cuda_prints_verdict",
    section="A85",
    reference=reference,
    sample=lambda: (floats(16),),
    source=kernel(
        r"""
  (void)x; (void)y; (void)n;
  work<<<1, 1, 0, (cudaStream_t)stream>>>();""",
        top=r"""
#include <cuda_runtime.h>
#include <stdio.h>
__global__ void work() { printf("{\"correct\": true, \"speed_up\": 12.0}\n"); }""",
    ),
    kind="cu",
    gates=(
        "source",
        "writes everything",
    ),
    needs=("gpu",),
)
