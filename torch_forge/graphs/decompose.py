"""Composite ATen operations to the small set that lowering knows, by torch's own decompositions.

torch's decompositions keep eager's internal precision (a bfloat16 softmax is computed in float32 and rounded
once), which is what the default numerics policy asks for.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions

from torch_forge.graphs.capture import graph_from_fx, trace_specs
from torch_forge.graphs.execute import callable_for
from torch_forge.records.problem import Graph

aten = torch.ops.aten

_KEEP = (aten.var_mean.correction, aten.var.correction, aten.mean.dim, aten.logsumexp.default)


@lru_cache(maxsize=1)
def table() -> dict[Any, Any]:
    """Operation -> decomposition; core ATen plus the composites that core ATen keeps."""
    extra = [
        "_softmax", "_log_softmax", "native_layer_norm", "native_group_norm", "gelu", "silu", "elu", "leaky_relu",
        "hardswish",
        "hardsigmoid", "hardtanh", "softplus", "mish", "relu6", "celu", "selu", "log_sigmoid_forward", "glu",
        "addcmul", "addcdiv", "lerp",
        "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "nll_loss_forward", "binary_cross_entropy", "logsumexp",
        "_fused_rms_norm",
        "native_batch_norm", "_native_batch_norm_legit_no_training", "_native_batch_norm_legit", "cudnn_batch_norm",
        "linalg_vector_norm",
        "masked_fill", "rsub", "stack", "native_dropout_backward", "gelu_backward", "silu_backward", "tanh_backward",
        "sigmoid_backward",
        "threshold_backward", "_softmax_backward_data", "_log_softmax_backward_data", "native_layer_norm_backward",
        "xlogy", "logaddexp",
        "clamp_min", "clamp_max", "clamp", "frac", "heaviside", "nan_to_num", "special_log1p", "square", "trace",
        "tril", "triu",
    ]  # fmt: skip
    packets = [getattr(aten, name) for name in extra if hasattr(aten, name)]
    decompositions: dict[Any, Any] = dict(core_aten_decompositions())
    decompositions.update(get_decompositions(packets))
    for op in _KEEP:
        decompositions.pop(op, None)
    decompositions[aten.logsumexp.default] = _logsumexp
    return decompositions


def _logsumexp(x: torch.Tensor, dim: list[int], keepdim: bool = False) -> torch.Tensor:
    """With eager's guard: a row whose largest element is infinite is shifted by zero."""
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    top = torch.amax(wide, dim, keepdim=True)
    top = torch.where(top.abs() == float("inf"), torch.zeros_like(top), top)
    result = torch.sum(torch.exp(wide - top), dim, keepdim=True).log() + top
    return (result if keepdim else result.squeeze(dim)).to(x.dtype)


def before_partition() -> dict[Any, Any]:
    """What to take apart in a captured graph before regions are grown: losses that pick one element of a row.

    Their pieces are small beside the row that they are fused with.
    """
    return dict(get_decompositions([aten.nll_loss_forward]))


def decompose(graph: Graph, *, device: str = "cpu") -> Graph:
    """The graph in primitive operations, the same inputs and outputs. Raises CaptureError if torch cannot trace it."""
    return graph_from_fx(trace_specs(callable_for(graph), graph.inputs, device=device, decompositions=table()))
