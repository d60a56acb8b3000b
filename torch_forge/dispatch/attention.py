"""Keep attention whole in captured graphs.

AOTAutograd takes ``scaled_dot_product_attention`` apart on fake tensors and may choose the slow mathematical form where
eager takes one fused kernel: BERT in float16 with a mask ran at a third of eager's speed that way (H200, torch 2.11).
So, where no gradient is needed, the call is put behind an operator that decides at run time, as eager does.
"""

from __future__ import annotations

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


def keep_attention(gm: torch.fx.GraphModule) -> None:
    """Replace attention calls of a Dynamo graph by the whole operator, in place; none while gradients are recorded."""
    if torch.is_grad_enabled():
        return
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target is F.scaled_dot_product_attention and _plain(node):
            node.target = _operator()
    gm.recompile()


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
