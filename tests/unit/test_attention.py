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


class Masked(nn.Module):
    """Makes its mask as libraries do while they are traced; the first ``hidden`` positions may look nowhere."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden

    def forward(self, q: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(q.shape[2], device=q.device)[None, None, :, None]
        mask = (rows >= self.hidden).expand(q.shape[0], -1, q.shape[2], q.shape[2])
        return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


@pytest.mark.parametrize("hides", [False, True])
def test_a_mask_that_hides_nothing_is_left_out(hides: bool) -> None:
    torch._dynamo.reset()
    model, q = Masked(3 if hides else 0), inputs()[0]
    with torch.no_grad():
        (graph,) = captured_graphs(lambda m: m(q), model)
        (node,) = [n for n in graph.graph.nodes if str(n.target) == "torch_forge.attention.default"]
        assert any(isinstance(a, torch.fx.Node) for a in (*node.args[3:], *node.kwargs.values())) is hides
        compiled = ModelInstall(model, lambda _: None).compiled
        torch.testing.assert_close(compiled(q), model(q), rtol=0, atol=1e-6, equal_nan=True)


def test_a_mask_of_the_user_is_never_looked_into() -> None:
    torch._dynamo.reset()
    args = [*inputs(), torch.ones(2, 1, 7, 7, dtype=torch.bool)]
    with torch.no_grad():
        (graph,) = captured_graphs(lambda m: m(*args), Attend(causal=False))
    (node,) = [n for n in graph.graph.nodes if str(n.target) == "torch_forge.attention.default"]
    assert len(node.all_input_nodes) == 4
