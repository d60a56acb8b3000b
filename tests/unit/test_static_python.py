"""The source gate for Python candidates: bright lines, notes, and the files that people publish."""

from __future__ import annotations

import pytest

from torch_forge.validation.static.python import python_findings, python_reasons

TRITON = '''
"""A row softmax."""
import torch
import triton
import triton.language as tl


@triton.autotune(configs=[triton.Config({"BLOCK": 1024}, num_warps=w) for w in (4, 8)], key=["cols"])
@triton.jit
def kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + at, mask=at < cols, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + row * cols + at, e / tl.sum(e, 0), mask=at < cols)


class ModelNew(torch.nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.width = width

    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(x.shape[0],)](x, y, x.shape[1])
        return y
'''
INLINE = '''
import os
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

os.environ["TORCH_CUDA_ARCH_LIST"] = "9.0"
cuda = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>
__global__ void relu(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = fmaxf(x[i], 0.f);
}
torch::Tensor run(torch::Tensor x) {
  auto y = torch::empty_like(x);
  relu<<<(x.numel() + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
      x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
  return y;
}
"""
module = load_inline(name="m", cpp_sources="torch::Tensor run(torch::Tensor x);", cuda_sources=cuda, functions=["run"])


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module.run(x)
'''


@pytest.mark.parametrize("text", [TRITON, INLINE], ids=["triton", "load_inline"])
def test_what_people_publish_passes(text: str):
    assert python_reasons(text) == []


def test_triton_has_nothing_to_name_and_bound_torch_is_a_note():
    assert python_findings(TRITON) == []
    notes = python_findings(INLINE)
    assert {f.rule for f in notes} == {"include", "library", "environment"}
    assert next(f.line for f in notes if "extension.h" in f.what) == 9


def forward(body: str, top: str = "import torch") -> str:
    return f"{top}\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        {body}\n"


REJECTED = [
    ("import torch\ntorch.allclose = lambda *a: True\n", "patching", "torch.allclose"),
    ("import torch.nn.functional as F\nF.relu = None\n", "patching", "torch.nn.functional.relu"),
    ("from time import perf_counter\nimport time as t\nt.perf_counter = perf_counter\n", "patching", "time.perf_counter"),
    ("import torch\nsetattr(torch, 'equal', None)\n", "patching", "setattr"),
    ("import torch\ntorch.Tensor.__eq__ = None\n", "patching", "torch.Tensor.__eq__"),
    ("import torch\nl = torch.library.Library('aten', 'IMPL')\n", "patching", "torch.library.Library"),
    ("import torch\ntorch.backends.cuda.matmul.allow_tf32 = True\n", "flags", "allow_tf32"),
    ("import torch\ntorch.set_float32_matmul_precision('medium')\n", "flags", "precision"),
    ("import gc\n", "inside", "gc"),
    ("from inspect import stack\n", "inside", "inspect"),
    ("import sys\nf = sys._getframe(1)\n", "inside", "sys._getframe"),
    ("from sys import modules\n", "inside", "sys.modules"),
    ("import sys\nt = sys.modules['torch']\n", "inside", "sys.modules"),
    ("def f(g):\n    return g.__globals__\n", "inside", "__globals__"),
    ("def f(g):\n    return getattr(g, 'f_back')\n", "inside", "f_back"),
    ("x = __builtins__\n", "inside", "__builtins__"),
    ("class R:\n    def __reduce__(self):\n        return print, ()\n", "inside", "__reduce__"),
    ("import ctypes\n", "native", "ctypes"),
    ("import subprocess\n", "processes", "subprocess"),
    ("import os\nos.system('id')\n", "processes", "os.system"),
    ("from os import fork\n", "processes", "os.fork"),
    ("import os as o\no.kill(1, 9)\n", "processes", "os.kill"),
    ("import socket\n", "network", "socket"),
    ("import os\nk = os.environ['KEY']\n", "environment", "os.environ"),
    ("import os\nos.environ['LD_PRELOAD'] = 'x'\n", "environment", "os.environ"),
    ("import os\nk = os.getenv('KEY')\n", "environment", "os.environ"),
    ("f = open('x')\n", "files", "open"),
    ("o = open\n", "files", "open"),
    ("import torch\nw = torch.load('x')\n", "files", "torch.load"),
    ("import pathlib\n", "files", "pathlib"),
    ("p = '/proc/self/maps'\n", "literal", "/proc/"),
    ("eval('1')\n", "dynamic code", "eval"),
    ("m = __import__('os')\n", "dynamic code", "__import__"),
    ("import importlib\n", "dynamic code", "importlib"),
    ("import pickle\n", "dynamic code", "pickle"),
    ("import torch\ntorch.ops.load_library('x.so')\n", "dynamic code", "load_library"),
    ("import atexit\n", "late code", "atexit"),
    ("import sys\nsys.exit(0)\n", "ends", "sys.exit"),
    ("import flash_attn\n", "library", "flash_attn"),
    (forward("return getattr(torch, 'mat' + 'mul')(x, x)"), "built name", "puts a name together"),
    (forward("return getattr(torch, f'mat{1}')(x, x)"), "built name", "puts a name together"),
    ("from reference import Model\nclass ModelNew(Model):\n    pass\n", "inherits", "reference.Model"),
    ("from . import other\n", "import", "one file"),
    (
        forward("try:\n            return fast(x)\n        except Exception:\n            return torch.softmax(x, -1)"),
        "fallback", "torch.softmax",
    ),
    ('s = """\n#include <unistd.h>\nint f() { return system("id"); }\n"""\n', "processes", "system"),
    ("# -*- coding: rot13 -*-\nx = 1\n", "disguise", "rot13"),
    ("x = 1  # \u202e\n", "disguise", "invisible"),
    ("def f(:\n", "syntax", "not Python"),
    ("x = 1\0\n", "syntax", "not Python"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "rule", "word"), REJECTED, ids=[f"{r[1]}-{k}" for k, r in enumerate(REJECTED)])
def test_bright_lines_reject_with_a_reason(text: str, rule: str, word: str):
    found = [f for f in python_findings(text) if f.rejects and f.rule == rule]
    assert any(word in str(f) for f in found), python_findings(text)


def test_a_wide_letter_is_the_letter_it_stands_for():
    assert "eval" in python_reasons("\uff45val('1')\n")[0]


NOTED = [
    (forward("return torch.matmul(x, x)"), "own work"),
    (forward("return F.softmax(x, -1)", "import torch\nimport torch.nn.functional as F"), "own work"),
    (forward("m = torch.matmul\n        return m(x, x)"), "own work"),
    ("import time\n", "clock"),
    ("import threading\n", "threads"),
    ("import unheard_of\n", "import"),
    ("from torch import *\n", "import"),
    ("print('x')\n", "prints"),
    ("import torch\ns = torch.cuda.Stream()\n", "stream"),
    ("import torch\ntorch.cuda.synchronize()\n", "synchronises"),
    ("import torch\nf = torch.compile(lambda x: x)\n", "own work"),
    ("import torch\nclass Lazy(torch.Tensor):\n    pass\n", "subclass"),
    ("import torch\ndef f(n):\n    return getattr(torch, n)\n", "built name"),
]


@pytest.mark.parametrize(("text", "rule"), NOTED, ids=[f"{n[1]}-{k}" for k, n in enumerate(NOTED)])
def test_what_proves_nothing_is_a_note(text: str, rule: str):
    assert {(f.rule, f.rejects) for f in python_findings(text)} == {(rule, False)}


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ntry:\n    import triton\nexcept ImportError:\n    triton = None\n",
        "class A:\n    def open(self):\n        return self.open()\n",
        "import os\nhere = os.path.join('a', 'b')\n",
        "import torch\nclass M(torch.nn.Module):\n    def __init__(self):\n        self.t = {}\n",
        "def f(x):\n    return getattr(x, 'shape', None)\n",
        "import torch\nx = torch.empty(3)\nx[0] = 1\n",
        "def compile(x):\n    return x\ny = compile\n",
    ],
)
def test_ordinary_python_passes(text: str):
    assert python_findings(text) == []
