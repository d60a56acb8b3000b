"""The functions of the suites, as model code has them: plain eager PyTorch, nothing written for a compiler.

Where a model library and a textbook differ in where they round, the library's way is kept: that is what users run.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

EPS = 1e-6


def softmax(x: Tensor) -> Tensor:
    """Softmax over the last dimension."""
    return F.softmax(x, dim=-1)


def scaled_masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Attention weights of heads of width 64, in float32 and back, as transformers does it."""
    return F.softmax((scores * 0.125 + mask).float(), dim=-1).to(scores.dtype)


def logsumexp(x: Tensor) -> Tensor:
    """log(sum(exp(x))) over the last dimension."""
    return torch.logsumexp(x, dim=-1)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """LayerNorm over the last dimension."""
    return F.layer_norm(x, weight.shape, weight, bias)


def add_layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Residual add, then LayerNorm; the sum goes on to the next block."""
    total = x + residual
    return layer_norm(total, weight, bias), total


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm as Llama models have it: statistics in float32, rounded before the weight."""
    wide = x.to(torch.float32)
    variance = wide.pow(2).mean(-1, keepdim=True)
    return weight * (wide * torch.rsqrt(variance + EPS)).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Residual add, then RMSNorm; the sum goes on to the next block."""
    total = x + residual
    return rms_norm(total, weight), total


def group_norm_silu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The block of diffusion U-Nets: 32 groups, then SiLU."""
    return F.silu(F.group_norm(x, 32, weight, bias))


def batch_norm_relu(x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Batch norm in evaluation, then ReLU."""
    return F.relu(F.batch_norm(x, mean, variance, weight, bias))


def gelu_tanh_chain(x: Tensor) -> Tensor:
    """GPT-2's GELU, written out."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def gelu_erf_chain(x: Tensor) -> Tensor:
    """The exact GELU, written out."""
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """SiLU-gated product."""
    return F.silu(gate) * up


def bias_gelu_residual(x: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    """What follows a linear layer."""
    return F.gelu(x + bias) + residual


def _rotate_half(x: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return torch.cat((-high, low), dim=-1)


def rotary(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary embedding: query and key (batch, heads, sequence, width), cos and sin (batch, sequence, width)."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return query * cos + _rotate_half(query) * sin, key * cos + _rotate_half(key) * sin


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Mean loss of a language model's head, in float32."""
    return F.cross_entropy(logits.float(), target)


def kl_divergence(student: Tensor, teacher: Tensor) -> Tensor:
    """Distillation loss between two rows of logits."""
    return F.kl_div(F.log_softmax(student, dim=-1), F.softmax(teacher, dim=-1), reduction="batchmean")


def mse_loss(x: Tensor, y: Tensor) -> Tensor:
    """Mean squared difference, one number."""
    return F.mse_loss(x, y)


def cumulative_sum(x: Tensor) -> Tensor:
    """Prefix sums along the last dimension."""
    return torch.cumsum(x, dim=-1)


def column_sum(x: Tensor) -> Tensor:
    """Sum over the first dimension, as the gradient of a bias is."""
    return x.sum(dim=0)


def l2_normalize(x: Tensor) -> Tensor:
    """Rows to length one."""
    return F.normalize(x, dim=-1)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """int8 by row: the values, and a float32 scale per row."""
    scale = x.abs().amax(dim=-1, keepdim=True).float() / 127.0
    return torch.clamp(torch.round(x.float() / scale), -128, 127).to(torch.int8), scale


def embed_and_norm(
    ids: Tensor, types: Tensor, words: Tensor, positions: Tensor, kinds: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    """BERT's first layer: three embeddings added, then LayerNorm."""
    where = torch.arange(ids.shape[1], device=ids.device)
    return layer_norm(words[ids] + positions[where] + kinds[types], weight, bias)


def causal_conv_silu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Depthwise convolution over the past, then SiLU, as in state-space models: x (batch, channels, sequence)."""
    taps = weight.shape[-1]
    return F.silu(F.conv1d(x, weight, bias, padding=taps - 1, groups=x.shape[1])[..., : x.shape[-1]])


def channels_first(x: Tensor) -> Tensor:
    """(batch, height, width, channels) to (batch, channels, height, width), copied."""
    return x.permute(0, 3, 1, 2).contiguous()


def gate_top2(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The router of a mixture of experts: the two best experts of a token and their weights."""
    weights, experts = torch.topk(F.softmax(logits.float(), dim=-1), 2, dim=-1)
    return weights / weights.sum(dim=-1, keepdim=True), experts


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x times the transposed weight."""
    return F.linear(x, weight)


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Linear layer with bias, then GELU."""
    return F.gelu(F.linear(x, weight, bias))


def swiglu_mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Llama's feed-forward block."""
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def matmul(x: Tensor, y: Tensor) -> Tensor:
    """Matrix product."""
    return torch.matmul(x, y)


def batched_matmul(x: Tensor, y: Tensor) -> Tensor:
    """One small product per batch entry."""
    return torch.bmm(x, y)
