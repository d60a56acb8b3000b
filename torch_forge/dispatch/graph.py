"""The ``graph`` install: regions of a compiled model's ATen graph replaced by forged operators.

``torch.compile`` captures the model and guards it; what is not forged runs as the eager ATen calls it was, or goes to
Inductor. A guard of our own stands in front: only inputs like the tuned ones take the compiled path,
anything else runs the model exactly as before.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.fx
from torch.nn.modules.module import _has_any_global_hook
from torch.utils import _pytree as pytree

from torch_forge.dispatch.attention import keep_attention
from torch_forge.dispatch.keys import ambient_is_plain, autocast_state
from torch_forge.errors import CaptureError
from torch_forge.graphs.decompose import before_partition
from torch_forge.graphs.partition import FxRegion, regions
from torch_forge.records.problem import Policy

log = logging.getLogger("torch_forge")

Lookup = Callable[[FxRegion], "torch._ops.OpOverload | None"]
"""From a region to the operator that computes it; None leaves the region as it is."""
OnGraph = Callable[[torch.fx.GraphModule], None]


def substitute(
    gm: torch.fx.GraphModule, replacements: Sequence[tuple[FxRegion, torch._ops.OpOverload]]
) -> torch.fx.GraphModule:
    """Each region's nodes replaced by one call, in place; nodes that others still need stay."""
    graph = gm.graph
    replaced: dict[torch.fx.Node, torch.fx.Node] = {}
    for region, op in replacements:
        anchor = max((n for n in region.inputs), key=_position)
        with graph.inserting_after(anchor):
            # One region may read what an earlier one computes now.
            call = graph.call_function(op, tuple(replaced.get(n, n) for n in region.inputs))
        values = [o.meta["val"] for o in region.outputs]
        call.meta["val"] = values[0] if len(values) == 1 else tuple(values)
        call.meta["forge_position"] = _position(anchor)
        inside = set(region.nodes)
        for k, output in enumerate(region.outputs):
            result = call
            if len(values) > 1:
                with graph.inserting_after(call):
                    result = graph.call_function(_getitem, (call, k))
                result.meta["val"] = values[k]
                result.meta["forge_position"] = _position(anchor)
            replaced[output] = result
            output.replace_all_uses_with(result, delete_user_cb=partial(_outside, inside))
    _sort(gm)
    graph.eliminate_dead_code()
    gm.recompile()
    return gm


def _outside(inside: set[torch.fx.Node], user: torch.fx.Node) -> bool:
    return user not in inside


def _getitem(values: Sequence[Any], k: int) -> Any:
    return values[k]


def _position(node: torch.fx.Node) -> int:
    return int(node.meta.get("forge_position", -1))


def _sort(gm: torch.fx.GraphModule) -> None:
    """Definitions before uses again; placeholders first, output last, otherwise the old order."""
    order: dict[torch.fx.Node, None] = {n: None for n in gm.graph.nodes if n.op == "placeholder"}
    pending = [n for n in gm.graph.nodes if n.op != "placeholder"]
    for root in pending:
        stack = [root]
        while stack:
            node = stack[-1]
            missing = [p for p in node.all_input_nodes if p not in order]
            if missing:
                stack.extend(missing)
            else:
                stack.pop()
                order.setdefault(node)
    last: torch.fx.Node | None = None
    for node in order:
        if last is not None:
            last.append(node)
        last = node


def compiler(
    lookup: Lookup | None, *, on_graph: OnGraph | None = None, policy: Policy = Policy.EAGER_EQUIVALENT
) -> Callable[..., Any]:
    """A backend for ``torch.compile``: AOTAutograd, then regions replaced in the forward and backward graphs.

    What is left runs as the ATen calls it was. lookup: which operator computes a region; None replaces nothing. on_graph:
    shown each ATen graph before that.
    """
    from functorch.compile import make_boxed_func  # type: ignore[import-untyped]
    from torch._dynamo.backends.common import aot_autograd

    def compile_graph(gm: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        if on_graph is not None:
            on_graph(gm)
        if lookup is not None:
            found, _ = regions(gm, policy=policy)
            replacements = [(r, op) for r in found if (op := lookup(r)) is not None]
            if replacements:
                gm = substitute(gm, replacements)
        return make_boxed_func(gm.forward)  # type: ignore[no-any-return]

    everywhere: dict[str, Any] = dict.fromkeys(("fw_compiler", "bw_compiler", "inference_compiler"), compile_graph)
    lower: Callable[..., Any] = aot_autograd(**everywhere, decompositions=before_partition())

    def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        keep_attention(gm)
        compiled: Callable[..., Any] = lower(gm, example_inputs)
        return compiled

    return backend


def captured_graphs(run: Callable[[Callable[..., Any]], Any], target: Callable[..., Any]) -> list[torch.fx.GraphModule]:
    """The ATen graphs that one call of ``run`` (given the compiled target) needs. Raises CaptureError if there is none."""
    graphs: list[torch.fx.GraphModule] = []
    backend = compiler(None, on_graph=graphs.append)
    try:
        run(torch.compile(target, backend=backend, dynamic=False))
    except torch._dynamo.exc.TorchDynamoException as error:
        raise CaptureError(f"torch.compile cannot capture the model: {str(error).splitlines()[0]}") from error
    if not graphs:
        raise CaptureError("torch.compile found nothing to capture in the model")
    return graphs


def call_key(args: tuple[Any, ...], kwargs: Mapping[str, Any], module: torch.nn.Module | None) -> object:
    """What must be as it was at tuning: shapes, strides, types, devices, plain values, modes."""
    leaves, structure = pytree.tree_flatten((args, dict(kwargs)))
    parts = tuple(_leaf_key(leaf) for leaf in leaves)
    modes = (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        autocast_state(),
        module.training if module is not None else None,
    )
    return (parts, str(structure) if leaves else None, modes)


def _leaf_key(leaf: Any) -> object:
    if isinstance(leaf, torch.Tensor):
        return (type(leaf), tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad)
    if leaf is None or isinstance(leaf, (bool, int, float, str)):
        return (type(leaf), leaf)
    return type(leaf)


class ModelInstall:
    """Forged operators in one model instance; ``revert()`` takes them out.

    The class, the state dict, the hooks and other instances are untouched: only ``__call__`` of this instance takes another
    path, for
    inputs like the tuned ones. Copies of the model (deepcopy, pickle) are plain: torch leaves this attribute out of a
    module's state.
    """

    def __init__(self, model: torch.nn.Module, lookup: Lookup, *, policy: Policy = Policy.EAGER_EQUIVALENT) -> None:
        self._model = weakref.ref(model)
        self._known: set[object] = set()
        self._previous = model._compiled_call_impl
        self.seen: dict[object, int] = {}
        """Keys of calls that ran eager, with counts; at most 256 of them."""
        self._compiled = torch.compile(model._call_impl, backend=compiler(lookup, policy=policy), dynamic=False)
        # Left to itself, torch.compile does not notice hooks that come or go after it has compiled.
        self._hook_guards = torch._dynamo.config.patch(skip_nnmodule_hook_guards=False)

    @property
    def compiled(self) -> Callable[..., Any]:
        """The compiled path, without the guard."""
        return self._compiled

    def admit(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Calls like this one take the compiled path from now on."""
        model = self._model()
        self._known.add(call_key(args, kwargs, model))

    def install(self) -> None:
        """Put the guard in front of the model."""
        model = self._model()
        assert model is not None
        model._compiled_call_impl = self

    def revert(self) -> None:
        """The model as it was before; calling it again is harmless."""
        model = self._model()
        if model is not None and model._compiled_call_impl is self:
            model._compiled_call_impl = self._previous

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        model = self._model()
        assert model is not None
        if not ambient_is_plain() or _has_any_global_hook():  # type: ignore[no-untyped-call]
            return model._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
        key = call_key(args, kwargs, model)
        if key in self._known:
            with self._hook_guards:
                return self._compiled(*args, **kwargs)
        if key in self.seen or len(self.seen) < 256:
            self.seen[key] = self.seen.get(key, 0) + 1
        return model._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
