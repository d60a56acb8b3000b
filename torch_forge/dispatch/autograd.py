"""Gradients of a forged call: the kernel computes the values, the original function, run again, the gradients.

The backward pass recomputes the original on the saved inputs and differentiates it, so gradients are eager's own to the
bit, of any order. It costs one forward pass of the original; what is saved is the inputs, never intermediates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from torch_forge.dispatch.keys import autocast_state


@dataclass(frozen=True)
class Recipe:
    """How to compute one case: fast, and again as the user wrote it."""

    run: Callable[..., Any]
    """Takes the call's tensors, returns its flat outputs."""
    reference: Callable[[Sequence[Tensor]], Any]
    """The original function of the same tensors; any output structure."""
    random: bool
    """Whether the reference draws random numbers; then their state is saved with the inputs."""


def with_gradient(recipe: Recipe, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    """Flat outputs of ``recipe.run``, attached to the autograd graph. Only floating-point outputs get a gradient."""
    outputs: tuple[Any, ...] = _Recompute.apply(recipe, *tensors)
    return outputs


def flat_outputs(outputs: object) -> list[Any]:
    """The outputs of a run as a list, whether it returned one tensor or several."""
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


class _Recompute(torch.autograd.Function):
    """Not ``once_differentiable``: under ``create_graph`` the backward pass is built from differentiable operations."""

    @staticmethod
    def forward(ctx: Any, recipe: Recipe, *tensors: Tensor) -> tuple[Any, ...]:
        ctx.recipe = recipe
        ctx.state = _Ambient(tensors, recipe.random)
        outputs = flat_outputs(recipe.run(*tensors))
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(o for o in outputs if isinstance(o, Tensor) and not _is_differentiable(o)))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        tensors: tuple[Tensor, ...] = ctx.saved_tensors
        create_graph = torch.is_grad_enabled()
        wanted = [i for i, needed in enumerate(ctx.needs_input_grad[1:]) if needed]
        inputs = list(tensors)
        found: list[Tensor | None] = [None] * len(tensors)
        with torch.enable_grad(), ctx.state.restored():
            for i in wanted:
                # An alias that stays in the graph lets second derivatives reach the input; otherwise a leaf is cheaper.
                inputs[i] = tensors[i].view_as(tensors[i]) if create_graph else tensors[i].detach().requires_grad_()
            outputs = pytree.tree_leaves(ctx.recipe.reference(inputs))
        pairs = [
            (output, grad)
            for output, grad in zip(outputs, grads, strict=True)
            if grad is not None and isinstance(output, Tensor) and output.requires_grad
        ]
        if pairs and wanted:
            targets = [inputs[i] for i in wanted]
            by_target = torch.autograd.grad(
                [o for o, _ in pairs], targets, [g for _, g in pairs], create_graph=create_graph, allow_unused=True
            )
            for i, grad in zip(wanted, by_target, strict=True):
                found[i] = grad
        return (None, *found)


def _is_differentiable(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


class _Ambient:
    """The torch state of a forward pass that its recomputation needs: autocast and, if asked for, random numbers."""

    __slots__ = ("_autocast", "_cuda_devices", "_rng_states")

    def __init__(self, tensors: Sequence[Tensor], random: bool) -> None:
        self._autocast = autocast_state()
        self._cuda_devices = sorted({t.get_device() for t in tensors if t.is_cuda}) if random else []
        self._rng_states = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, self._cuda_devices)] if random else []

    @contextmanager
    def restored(self) -> Iterator[None]:
        """As it was in the forward pass, inside; as it is now, afterwards."""
        with ExitStack() as stack:
            now = autocast_state()
            if now != self._autocast:
                for device, enabled, dtype in self._autocast or ((d, False, t) for d, _, t in now):
                    stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=False))
            if self._rng_states:
                stack.enter_context(torch.random.fork_rng(self._cuda_devices))
                torch.set_rng_state(self._rng_states[0])
                for device_index, state in zip(self._cuda_devices, self._rng_states[1:], strict=True):
                    torch.cuda.set_rng_state(state, device_index)
            yield
