"""What kind of node an ATen operation is, for growing regions: free, pointwise, row-wise, or not for templates."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from torch_forge.graphs import lower_ops, lower_reductions
from torch_forge.records.problem import frozen_args

VIEWS = frozenset(
    f"aten.{n}" for n in (
        "view.default", "_unsafe_view.default", "reshape.default", "expand.default", "permute.default", "t.default",
        "transpose.int",
        "unsqueeze.default", "squeeze.dim", "squeeze.dims", "squeeze.default", "slice.Tensor", "select.int",
        "alias.default",
        "split.Tensor", "split_with_sizes.default", "unbind.int", "detach.default",
    )
)  # fmt: skip
"""Metadata only; may be computed twice at no cost."""

CREATIONS = frozenset(
    f"aten.{n}"
    for n in (
        "full.default", "scalar_tensor.default", "arange.default", "arange.start", "arange.start_step", "zeros.default",
        "ones.default",
    )
)  # fmt: skip
"""No tensor inputs; cheaper to compute again than to read."""

COMPOSITE_POINTWISE = frozenset(
    f"aten.{n}" for n in (
        "gelu.default", "silu.default", "elu.default", "leaky_relu.default", "hardswish.default",
        "hardsigmoid.default", "hardtanh.default",
        "softplus.default", "mish.default", "addcmul.default", "addcdiv.default", "lerp.Tensor", "lerp.Scalar",
        "rsub.Scalar", "rsub.Tensor",
        "clamp.default", "clamp.Tensor", "clamp_min.default", "clamp_max.default", "clamp_min.Tensor",
        "clamp_max.Tensor",
        "masked_fill.Scalar", "masked_fill.Tensor", "xlogy.Tensor", "gelu_backward.default", "silu_backward.default",
        "tanh_backward.default",
        "sigmoid_backward.default", "threshold_backward.default", "log_sigmoid_forward.default",
        "native_batch_norm.default",
        "_native_batch_norm_legit_no_training.default", "cudnn_batch_norm.default", "new_zeros.default",
        "new_full.default",
        "full_like.default", "zeros_like.default", "ones_like.default", "nan_to_num.default", "glu.default",
        "tril.default", "triu.default",
        "batch_norm.default", "_batch_norm_no_update.default",
    )
)  # fmt: skip

_LAST_DIMS = frozenset(f"aten.{n}" for n in ("native_layer_norm.default", "_fused_rms_norm.default"))
_ONE_DIM = frozenset(f"aten.{n}" for n in ("_softmax.default", "_log_softmax.default"))
_BACKWARD_ONE_DIM = frozenset(f"aten.{n}" for n in ("_softmax_backward_data.default", "_log_softmax_backward_data.default"))


@dataclass(frozen=True)
class Kind:
    """``free``, ``pointwise``, ``row`` or ``none``; for rows, how many and how long."""

    name: str
    rows: int = 0
    row_length: int = 0


NONE, FREE, POINTWISE = Kind("none"), Kind("free"), Kind("pointwise")


def kind_of(node: torch.fx.Node) -> Kind:
    """The kind of one fx node, from its operation and its traced shapes."""
    if node.op != "call_function":
        return NONE
    if node.target is operator.getitem:
        return kind_of(node.args[0]) if isinstance(node.args[0], torch.fx.Node) else NONE
    name = str(node.target)
    if name in VIEWS or name in CREATIONS:
        return FREE
    if name in COMPOSITE_POINTWISE:
        return _batch_norm_kind(node) if "batch_norm" in name else POINTWISE
    shape = _input_shape(node)
    if name == "aten.native_group_norm.default" and shape is not None:
        groups = int(node.args[6])  # type: ignore[arg-type]
        return Kind("row", shape[0] * groups, math.prod(shape) // (shape[0] * groups)) if math.prod(shape) else NONE
    dims = None if shape is None else _reduced_dims(name, node, shape)
    if dims is not None and shape is not None:
        length = math.prod(shape[d] for d in dims)
        total = math.prod(shape)
        return Kind("row", total // max(length, 1), length) if length > 0 else NONE
    return POINTWISE if name in lower_ops.HANDLERS else NONE


def _batch_norm_kind(node: torch.fx.Node) -> Kind:
    """Only in evaluation mode: in training it updates its running statistics."""
    training = node.args[5] if len(node.args) > 5 else False
    if str(node.target) in ("aten._native_batch_norm_legit_no_training.default", "aten._batch_norm_no_update.default"):
        training = False
    return NONE if training else POINTWISE


def _input_shape(node: torch.fx.Node) -> tuple[int, ...] | None:
    first = node.args[0] if node.args else None
    value = first.meta.get("val") if isinstance(first, torch.fx.Node) else None
    if not isinstance(value, torch.Tensor) or not all(isinstance(n, int) for n in value.shape):
        return None
    return tuple(value.shape)


def _reduced_dims(name: str, node: torch.fx.Node, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    rank = len(shape)
    if name in _LAST_DIMS:
        count = len(_sequence(node.args[1]))
        return tuple(range(rank - count, rank))
    if name in _ONE_DIM:
        return (int(node.args[1]) % max(rank, 1),)  # type: ignore[arg-type]
    if name in _BACKWARD_ONE_DIM:
        return (int(node.args[2]) % max(rank, 1),)  # type: ignore[arg-type]
    if name in ("aten.logsumexp.default", "aten.linalg_vector_norm.default"):
        dims = node.args[1 if "logsumexp" in name else 2] if len(node.args) > (1 if "logsumexp" in name else 2) else None
        return tuple(int(d) % rank for d in _sequence(dims)) if dims is not None else tuple(range(rank))
    return _primitive_dims(name, node, rank)


def _primitive_dims(name: str, node: torch.fx.Node, rank: int) -> tuple[int, ...] | None:
    short = name.removeprefix("aten.")
    if short not in lower_reductions.REDUCTIONS and short not in lower_reductions.SCANS:
        return None
    if short in ("sum.default", "mean.default", "any.default", "all.default"):
        return tuple(range(rank))
    dims = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    dims = None if dims in (None, (), []) else _sequence(dims)
    return tuple(range(rank)) if dims is None else tuple(sorted(int(d) % max(rank, 1) for d in dims))


def _sequence(value: Any) -> tuple[Any, ...]:
    value = frozen_args(value)
    return value if isinstance(value, tuple) else (value,)
