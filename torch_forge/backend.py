"""``torch.compile(model, backend="torch_forge")``: kernels that the cache holds, for whatever graph is compiled.

Nothing is built or timed here. Fill the cache with ``autotune``, ``forge`` or ``torch-forge build-cache`` first; what it
does not hold runs as the ATen calls it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_forge.dispatch.graph import compiler
from torch_forge.graphs.partition import FxRegion
from torch_forge.installing import Installed
from torch_forge.search.forge import forge_problem
from torch_forge.search.workshop import Deadline, Workshop
from torch_forge.settings import Settings


def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compile one Dynamo graph; torch finds this function by its entry point."""
    device = next((str(t.device) for t in example_inputs if isinstance(t, torch.Tensor)), "cpu")
    shop = Workshop.open(device, Settings.resolve())
    shop.toolchain = None  # only what is known
    installed = Installed(shop)

    def lookup(region: FxRegion) -> torch._ops.OpOverload | None:
        installed.add(forge_problem(region.problem, region.lowered, shop, deadline=Deadline.after(0)))
        return installed.lookup(region)

    compiled: Callable[..., Any] = compiler(lookup)(gm, example_inputs)
    return compiled
