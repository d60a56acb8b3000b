"""Small modules, each with one habit that makes a model hard to run without trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


class Block(nn.Module):
    """What an ordinary model has: a product, norms, an activation, dropout."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.batch_norm = nn.BatchNorm1d(width)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.dropout(self.batch_norm(nn.functional.gelu(self.norm(self.linear(x))))), -1)


class Hoarder(nn.Module):
    """Counts, collects and caches on itself, and registers a hook while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.step = 0
        self.history: list[int] = []
        self.by_size: dict[int, torch.Tensor] = {}
        self.table = torch.zeros(4)
        self.register_buffer("seen", torch.zeros(4), persistent=False)
        self.generator = torch.Generator().manual_seed(7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        self.history.append(self.step)
        self.by_size[len(self.by_size)] = x.detach().clone()
        self.latest = x.detach()
        self.table.add_(1)
        self.seen = self.seen + 1
        self.train(not self.training)
        self.register_forward_hook(lambda *_: None)
        return x + torch.rand(x.shape, generator=self.generator)


class InPlace(nn.Module):
    """Writes into its inputs and asks for their gradient, as force fields do."""

    def forward(self, x: torch.Tensor, caches: list[torch.Tensor]) -> torch.Tensor:
        caches.append(x.detach().clone())
        caches[0].mul_(2)
        x.requires_grad_(True)
        return torch.autograd.grad((x * x).sum(), x)[0]


@dataclass
class Output:
    logits: torch.Tensor
    hidden: tuple[torch.Tensor, ...]
    loss: torch.Tensor | None = None


class DictNet(nn.Module):
    """Takes keyword arguments, returns a dict with a dataclass in it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> dict[str, Any]:
        h = self.norm(ids)
        return {"out": Output(h, (h + 1, h + 2)), "mask": mask, "name": "net"}


def tiny_llama() -> nn.Module:
    """Random weights, nothing downloaded."""
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, vocab_size=128, **heads)
    return LlamaForCausalLM(config).eval()
