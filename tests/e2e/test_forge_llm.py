"""A language model in the loop, through litellm over HTTP on loopback; its kernels are treated like a template's."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

import torch_forge
from tests.support.openai_server import openai_server, reply
from torch_forge.settings import Settings

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("litellm") is None, reason="needs litellm (extra `llm`)"),
]

KERNEL = """
#include "forge.h"
extern "C" int forge_launch(const ForgeTensor* in, const ForgeTensor* out, const int64_t* dims, int64_t config,
                            int64_t threads, void* workspace, void* stream) {
  const float* x = (const float*)in[0].data;
  float* y = (float*)out[0].data;
  const int64_t rows = dims[0], columns = dims[1];
  #pragma omp parallel for num_threads(threads)
  for (int64_t j = 0; j < columns; j += 16) {
    const int64_t width = columns - j < 16 ? columns - j : 16;
    float sum[16] = {0};
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t l = 0; l < width; ++l) sum[l] += x[i * columns + j + l] * FACTOR;
    for (int64_t l = 0; l < width; ++l) y[j + l] = sum[l];
  }
  return FORGE_OK;
}
"""


def scaled_column_sums(x: torch.Tensor) -> torch.Tensor:
    """No template serves it: it reduces over a strided dimension."""
    return (x.t() * 0.5).t().sum(0)


def test_a_reply_with_an_error_is_repaired_and_a_right_kernel_used_or_honestly_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = reply(f"```cpp\n{KERNEL.replace('FACTOR', 'undeclared')}\n```")
    wrong = reply(f"```cpp\n{KERNEL.replace('FACTOR', '0.25f')}\n```")
    right = reply(f"Here it is.\n```cpp\n{KERNEL.replace('FACTOR', '0.5f')}\n```")
    x = torch.randn(2048, 1024)
    settings = Settings.resolve({"TORCH_FORGE_TIMING": "brief"}, cache_dir=tmp_path, budget_s=100.0, peers="eager")
    with openai_server(broken, wrong, right, right, right) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0000000000000000")
        monkeypatch.setenv("OPENAI_API_BASE", server.base_url)
        forged = torch_forge.forge(scaled_column_sums, (x,), llm="openai/scripted", settings=settings)
        prompts = [str(r.body) for r in server.requests]
    outcomes = forged.regions[0].outcomes
    assert (outcomes["not built"], outcomes["mismatch"], outcomes["passed"]) == (1, 1, 1), outcomes
    assert "undeclared" in prompts[1]
    assert "0.25" in prompts[2]
    assert "aten.sum" in prompts[0]
    torch.testing.assert_close(forged(x), scaled_column_sums(x), rtol=1e-4, atol=1e-3)
