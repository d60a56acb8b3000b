"""Winners into torch: load the libraries, register the operator, bind the workload. A library that does not load is
forgotten.
"""

from __future__ import annotations

import logging

import torch

from torch_forge.dispatch.registry import BindError, load_op
from torch_forge.graphs.partition import FxRegion
from torch_forge.machine.loader import LoadError
from torch_forge.search.forge import Forged
from torch_forge.search.workshop import Workshop

log = logging.getLogger("torch_forge")


class Installed:
    """The operators that one model or function uses; ``release()`` gives them back."""

    def __init__(self, shop: Workshop) -> None:
        self._registry = shop.registry
        self._device = shop.device
        self._operators: dict[str, torch._ops.OpOverload] = {}
        self._handles: dict[str, object] = {}

    def add(self, forged: Forged) -> bool:
        """Make one winner callable; False, with a log line, if its libraries cannot be loaded here."""
        if forged.binding is None:
            return False
        problem = forged.problem
        if problem.workload in self._operators:
            return True
        try:
            handle = load_op(
                problem.name, problem.digest, len(problem.graph.inputs), len(problem.graph.outputs), self._device.type,
                forged.glue_library, forged.kernel_library,
            )  # fmt: skip
            self._registry.install(problem.workload, self._device.key, handle, forged.binding)
        except (LoadError, BindError) as error:
            log.warning("%s is not installed: %s", problem.name, error)
            return False
        self._operators[problem.workload] = handle.op
        self._handles[handle.name] = handle
        return True

    def lookup(self, region: FxRegion) -> torch._ops.OpOverload | None:
        """The operator for a region of a graph, if one is installed."""
        return self._operators.get(region.problem.workload)

    def operator(self, workload: str) -> torch._ops.OpOverload | None:
        """The operator for one workload, if one is installed."""
        return self._operators.get(workload)

    @property
    def calls(self) -> int:
        """Calls that these operators have served so far."""
        return sum(h.calls for h in self._handles.values())  # type: ignore[attr-defined]

    def __len__(self) -> int:
        return len(self._operators)

    def release(self) -> None:
        """Take the bindings out again."""
        for workload in self._operators:
            self._registry.revert(workload, self._device.key)
        self._operators.clear()
