"""Keep attention whole in captured graphs.

AOTAutograd takes ``scaled_dot_product_attention`` apart on fake tensors and may choose the slow mathematical form where
eager takes one fused kernel: BERT in float16 with a mask ran at a third of eager's speed that way (H200, torch 2.11).
So, where no gradient is needed, the call is put behind an operator that decides at run time, as eager does.

A mask that hides nothing, made in the graph from no input, is left out: libraries make none in eager, but cannot see while
they are traced that they need none, and no fused kernel takes the one that they make then.
"""

from __future__ import annotations

import operator
from functools import lru_cache
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor

SCHEMA = (
    "attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0.0, bool is_causal=False, "
    "*, float? scale=None, bool enable_gqa=False) -> Tensor"
)

_PURE = frozenset({
    torch.arange, torch.ones, torch.zeros, torch.full, operator.add, operator.sub, operator.getitem, operator.and_,
    operator.or_, operator.ge, operator.gt, operator.le, operator.lt, "expand", "to", "unsqueeze", "new_ones", "view",
    "bool",
})  # fmt: skip
"""Functions and methods that masks are made with, safe to run while compiling."""


def keep_attention(gm: torch.fx.GraphModule) -> None:
    """Replace attention calls of a Dynamo graph by the whole operator, in place; none while gradients are recorded."""
    if torch.is_grad_enabled():
        return
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target is F.scaled_dot_product_attention and _plain(node):
            node.target = _operator()
            _drop_useless_mask(node)
    gm.recompile()


def _drop_useless_mask(node: torch.fx.Node) -> None:
    mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
    made = _constant(mask, {}) if isinstance(mask, torch.fx.Node) else None
    if made is None or made.dtype != torch.bool or not bool(made.all()):
        return
    node.args = (*node.args[:3], None, *node.args[4:]) if len(node.args) > 3 else node.args
    node.kwargs = {k: v for k, v in node.kwargs.items() if k != "attn_mask"}


def _constant(node: torch.fx.Node, known: dict[torch.fx.Node, Any]) -> Any:
    """The value of a node that depends on no input; None if it depends on one, or on what is not known to be pure."""
    if node not in known:
        pure = node.op in ("call_function", "call_method") and node.target in _PURE
        if not pure or any(_constant(n, known) is None for n in node.all_input_nodes):
            known[node] = None
        else:
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: known[n])
            first, *rest = args
            method = node.op == "call_method"
            known[node] = getattr(first, str(node.target))(*rest, **kwargs) if method else node.target(*args, **kwargs)  # type: ignore[operator]
    return known[node]


def _plain(node: torch.fx.Node) -> bool:
    """Four dimensions and no dropout: what models call in inference."""
    query = node.args[0] if node.args else node.kwargs.get("query")
    example = query.meta.get("example_value") if isinstance(query, torch.fx.Node) else None
    dropout = node.args[4] if len(node.args) > 4 else node.kwargs.get("dropout_p", 0.0)
    return isinstance(example, Tensor) and example.dim() == 4 and bool(dropout == 0.0)


@lru_cache(maxsize=1)
def _library() -> object:
    library: Any = torch.library.Library("torch_forge", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define(SCHEMA)
    library.impl("attention", _attention, "CompositeExplicitAutograd")
    torch.library.register_fake("torch_forge::attention", _fake, lib=library)
    return library


def _operator() -> torch._ops.OpOverload:
    _library()
    overload: torch._ops.OpOverload = torch.ops.torch_forge.attention.default
    return overload


def _attention(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Eager attention, with the heads beside one another in memory whatever kernel was chosen, as the fake kernel says."""
    out = F.scaled_dot_product_attention(query, key, value, *args, **kwargs)
    return out.transpose(1, 2).contiguous().transpose(1, 2)


def _fake(query: Tensor, _key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
    batch, heads, length = query.shape[:3]
    return query.new_empty((batch, length, heads, value.shape[-1])).transpose(1, 2)
