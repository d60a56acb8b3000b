"""Inputs that no call has seen before: contents from a seed and a nonce, at addresses that move.

A timed call on bytes that were seen before may be answered from memory. Drawing new random inputs for every call would
take longer than the call, so each input is a window into a longer tensor drawn once, and the nonce says where it
begins: every element changes, at the price of a copy, and the values keep their distribution and stay valid indices. The
judge and the worker get the same bytes from the same seed and nonce, on the same type of device.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from torch_forge.graphs.inputs import distinct, draw, seed_at
from torch_forge.graphs.place import span
from torch_forge.graphs.ranges import index_ranges
from torch_forge.records.problem import Graph
from torch_forge.records.tensors import DTYPES, TensorSpec, contiguous

WINDOWS = 1 << 16
"""Places at which an input may begin."""
STEP_BYTES = 256
"""Addresses move by multiples of this, which no kernel can tell from an allocation of its own."""
STEPS = 64
_OUTLIER = (6.0, 8.0)
"""A float that is changed late becomes one of these: far from N(0, 1), and fit for a logarithm."""


class Fresh:
    """Inputs of one graph for several calls at a time, in memory that is used again and again."""

    def __init__(self, graph: Graph, *, seed: int, device: torch.device, shared: int = 0) -> None:
        """shared: so many leading inputs are the same tensors in all calls of one nonce, as a module's parameters are."""
        self._specs, self._device, self._shared = graph.inputs, device, shared
        self._sources = [
            draw(
                contiguous((_distinct_elements(spec) + WINDOWS,), spec.dtype),
                seed=seed_at(seed, position),
                distribution="normal",
                device=device,
                limit=limit,
            ).tensor
            for position, (spec, limit) in enumerate(zip(graph.inputs, index_ranges(graph), strict=True))
        ]
        own = range(shared, len(graph.inputs))
        self._largest = max(own, key=lambda k: (_is_float(graph.inputs[k]), graph.inputs[k].numel), default=None)
        self._memory = [[_memory(s, device) for s in graph.inputs]]
        """One entry for ``one``, then those of ``inputs``."""

    def reserve(self, calls: int) -> None:
        """Allocate for so many calls at a time."""
        while len(self._memory) <= calls:
            common = self._memory[1][: self._shared] if len(self._memory) > 1 else []
            self._memory.append(common + [_memory(s, self._device) for s in self._specs[len(common) :]])

    def inputs(self, nonce: int, calls: int) -> list[list[torch.Tensor]]:
        """Inputs for each call; those of the last nonce are overwritten, those of ``one`` are not."""
        self.reserve(calls)
        return [self._filled(nonce, call, self._memory[call + 1], anew=call == 0) for call in range(calls)]

    def one(self, nonce: int, call: int) -> list[torch.Tensor]:
        """The inputs of one of these calls, in memory of their own."""
        return self._filled(nonce, call, self._memory[0], anew=True)

    def _filled(self, nonce: int, call: int, memory: Sequence[torch.Tensor], *, anew: bool) -> list[torch.Tensor]:
        """anew: fill in the shared inputs too."""
        tensors = []
        for position, (spec, source) in enumerate(zip(self._specs, self._sources, strict=True)):
            common = position < self._shared
            choice = random.Random(f"{nonce}/{0 if common else call}/{position}")
            tensor = _tensor(memory[position], spec, choice.randrange(STEPS))
            target, start = distinct(tensor, spec), choice.randrange(WINDOWS + 1)
            if anew or not common:
                target.copy_(source[start : start + target.numel()].view(target.shape))
            tensors.append(tensor)
        return tensors

    def touch(self, tensors: Sequence[torch.Tensor], nonce: int, call: int) -> None:
        """Change one element of the largest input of a call: what was computed from the bytes before is stale."""
        if self._largest is None or self._specs[self._largest].numel == 0:
            return
        spec, source = self._specs[self._largest], self._sources[self._largest]
        choice = random.Random(f"{nonce}/{call}/late")
        target = distinct(tensors[self._largest], spec)
        at = tuple(choice.randrange(n) for n in target.shape)
        if _is_float(spec):
            target[at] = choice.uniform(*_OUTLIER)
        else:
            target[at] = source[choice.randrange(source.numel())]


def slot_bytes(graph: Graph) -> int:
    """Memory that the inputs of one call take."""
    return sum(_memory_bytes(s) for s in graph.inputs)


def _is_float(spec: TensorSpec) -> bool:
    return DTYPES[spec.dtype].kind == "float"


def _distinct_elements(spec: TensorSpec) -> int:
    if spec.numel == 0:
        return 0
    return distinct(torch.empty(span(spec), device="meta").as_strided(spec.shape, spec.stride), spec).numel()


def _memory_bytes(spec: TensorSpec) -> int:
    return span(spec) * spec.itemsize + (STEPS + 1) * STEP_BYTES


def _memory(spec: TensorSpec, device: torch.device) -> torch.Tensor:
    return torch.zeros(_memory_bytes(spec), dtype=torch.uint8, device=device)


def _tensor(memory: torch.Tensor, spec: TensorSpec, step: int) -> torch.Tensor:
    start = -memory.data_ptr() % STEP_BYTES + step * STEP_BYTES
    flat = memory[start : start + span(spec) * spec.itemsize].view(getattr(torch, spec.dtype))
    return flat.as_strided(spec.shape, spec.stride, flat.storage_offset())
