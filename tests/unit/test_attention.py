"""Attention stays one operator in captured graphs, with eager's numbers and whatever layout eager's kernel has."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torch_forge.dispatch.graph import ModelInstall, captured_graphs


class Attend(nn.Module):
    def __init__(self, *, causal: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.causal, self.dropout = causal, dropout

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal, dropout_p=self.dropout)
        return out.transpose(1, 2).reshape(q.shape[0], q.shape[2], -1) + 1


def inputs() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 3, 7, 8) for _ in range(3)]


def targets(model: nn.Module, *args: torch.Tensor) -> list[str]:
    return [str(n.target) for g in captured_graphs(lambda m: m(*args), model) for n in g.graph.nodes]


@pytest.mark.parametrize("masked", [False, True])
def test_attention_is_kept_whole_and_right(masked: bool) -> None:
    torch._dynamo.reset()
    model, args = Attend(causal=not masked), inputs()
    if masked:
        args.append(torch.randn(2, 1, 7, 7))
    with torch.no_grad():
        assert "torch_forge.attention.default" in targets(model, *args)
        compiled = ModelInstall(model, lambda _: None).compiled
        torch.testing.assert_close(compiled(*args), model(*args), rtol=0, atol=0)


def test_with_gradients_or_dropout_torch_decides() -> None:
    torch._dynamo.reset()
    assert "torch_forge.attention.default" not in targets(Attend(causal=True), *(x.requires_grad_() for x in inputs()))
    torch._dynamo.reset()
    with torch.no_grad():
        assert "torch_forge.attention.default" not in targets(Attend(causal=True, dropout=0.5), *inputs())
