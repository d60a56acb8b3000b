"""Operators that compute a region by its own reference: the installation machinery without any kernel."""

from __future__ import annotations

import torch

from torch_forge.graphs.execute import callable_for
from torch_forge.graphs.partition import FxRegion

_LIBRARY = torch.library.Library("torch_forge_tests", "FRAGMENT")
CALLS: list[str] = []
"""Workload of each call, in order."""


def reference_operator(region: FxRegion) -> torch._ops.OpOverload:
    """One operator per workload, on the CPU, with a fake kernel."""
    workload = region.problem.workload
    name = f"w{workload}"
    if not hasattr(torch.ops.torch_forge_tests, name):
        count = len(region.outputs)
        arguments = ", ".join(f"Tensor i{k}" for k in range(len(region.inputs)))
        _LIBRARY.define(f"{name}({arguments}) -> {'Tensor' if count == 1 else '(' + ', '.join(['Tensor'] * count) + ')'}")
        run = callable_for(region.problem.graph)

        def kernel(*inputs: torch.Tensor) -> object:
            CALLS.append(workload)
            outputs = run(*inputs)
            return outputs[0] if count == 1 else outputs

        def fake(*inputs: torch.Tensor) -> object:
            outputs = run(*inputs)
            return outputs[0] if count == 1 else outputs

        _LIBRARY.impl(name, kernel, "CPU")
        torch.library.register_fake(f"torch_forge_tests::{name}", fake, lib=_LIBRARY)
    overload: torch._ops.OpOverload = getattr(torch.ops.torch_forge_tests, name).default
    return overload
