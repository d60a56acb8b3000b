"""What an import costs, told by what it loads: seconds differ between machines, a list of modules does not."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "litellm", "optuna", "jinja2", "rich", "transformers", "triton", "pynvml", "ray", "mcp", "fsspec", "hypothesis",
    "torch._inductor", "torch._dynamo", "torch.utils.cpp_extension",
)  # fmt: skip


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120).stdout


@pytest.mark.slow
def test_on_top_of_torch_the_package_loads_little_and_touches_no_gpu():
    code = """
import sys, torch
before = set(sys.modules)
import torch_forge
print(torch.cuda.is_initialized(), *(set(sys.modules) - before))
"""
    initialized, *loaded = run(code).split()
    assert initialized == "False"
    assert sorted(set(loaded) & set(HEAVY)) == []
    ours = sorted(m for m in loaded if m.split(".")[0] == "torch_forge")
    assert len(ours) < 15, ours


@pytest.mark.parametrize(
    "module",
    ["torch_forge", "torch_forge.errors", "torch_forge.settings", "torch_forge.records.session",
     "torch_forge.records.program", "torch_forge.knowledge.locate"],
)  # fmt: skip
def test_no_torch_for(module: str):
    assert run(f"import sys, {module}; print('torch' in sys.modules)").strip() == "False"
