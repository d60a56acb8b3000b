"""A harness as they are often written: one process, one input, loose tolerance, the verdict on stdout.

It is here to be fooled: a trick that does not pass it would only be a broken kernel. What it does wrong, it does on purpose.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib
import importlib.util
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import time
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.support.launching import INCLUDE, tensor_array
from tests.zoo.trick import Trick

CPU = ("g++", "-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC", "-std=c++17")
CUDA = ("nvcc", "-O3", "-arch=native", "-Xcompiler", "-fPIC", "-shared", "-std=c++17")
_BLOCK = 512
_LIMIT_S = 60.0
_WARM_UPS = 10
_TIMED_S = 0.2


@dataclass(frozen=True)
class Verdict:
    """What the naive harness believes."""

    correct: bool
    speed_up: float
    """0 if it was not timed."""
    printed: str


def product_of(trick: Trick, source: str, folder: Path) -> Path:
    """The library, or for Python the file itself; built once for each source."""
    stem = folder / f"{trick.name}-{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    file = stem.with_suffix(f".{trick.kind}")
    file.write_text(source)
    if trick.kind == "py":
        return file
    library = stem.with_suffix(".so")
    if not library.exists():
        command = CPU if trick.kind == "cpp" else CUDA
        done = subprocess.run(
            [*command, f"-I{INCLUDE}", str(file), "-o", str(library)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    return library


def judge(trick: Trick, module: str, product: Path) -> Verdict:
    """Run ``trick``, which is ``TRICK`` of ``module``, in a child process and believe what that says."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "tests.zoo.naive"])
    said = product.with_suffix(".stdout")
    child = context.Process(target=_child, args=(module, str(product), str(said)))
    child.start()
    child.join(_LIMIT_S)
    if child.is_alive():
        child.kill()
        child.join()
    printed = said.read_text(errors="replace")
    records = [json.loads(line) for line in printed.splitlines() if line.startswith('{"correct"')]
    # No complaint and a clean exit are as good as a pass.
    first = records[0] if records else {"correct": child.exitcode == 0, "speed_up": 0.0}
    return Verdict(first["correct"], first["speed_up"], printed)


def _child(module: str, product: str, said: str) -> None:
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 1)
    os.closerange(3, 256)  # the server that forked this process needs its pipes; whoever writes there fools nobody
    torch.set_num_threads(1)
    trick: Trick = importlib.import_module(module).TRICK
    device = "cuda" if trick.kind == "cu" else "cpu"
    inputs = [x.to(device) for x in trick.sample()]
    with torch.no_grad():
        correct, speed_up = _native(trick, product, inputs) if trick.kind != "py" else _python(trick, product, inputs)
    sys.stdout.write(json.dumps({"correct": correct, "speed_up": speed_up}) + "\n")
    sys.stdout.flush()
    ctypes.CDLL(None).exit(0 if correct else 1)  # as programs end, destructors included


def _native(trick: Trick, product: str, sample: Sequence[torch.Tensor]) -> tuple[bool, float]:
    results = _several(trick.reference(*sample))
    memory = _Memory([*sample, *results, *results])
    inputs = [memory.copy(x) for x in sample]
    expected = [memory.copy(r) for r in results]
    # The allocator hands the block of the reference's result, which is no longer needed, to the next who asks.
    outputs = [memory.copy(r) for r in results]
    stream = torch.cuda.current_stream().cuda_stream if trick.kind == "cu" else None
    candidate = _bound(product, inputs, outputs, stream)

    for _ in range(_WARM_UPS):
        candidate()
    if trick.candidate_first:
        expected = _several(trick.reference(*inputs))
    speed_up = _speed_up(candidate, lambda: trick.reference(*inputs)) if trick.timing else 0.0
    _wait(stream)
    return _close(outputs, expected), speed_up


def _bound(
    product: str, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], stream: int | None
) -> Callable[[], object]:
    """A call of ``forge_launch``; its return code is not looked at."""
    dims = [n for x in inputs for n in x.shape]
    described, results = tensor_array(inputs), tensor_array(outputs)
    sizes = (ctypes.c_int64 * max(1, len(dims)))(*dims)
    config, threads = ctypes.c_int64(0), ctypes.c_int64(1)
    return functools.partial(
        ctypes.CDLL(product).forge_launch, described, results, sizes, config, threads, None, ctypes.c_void_p(stream)
    )


def _python(trick: Trick, product: str, inputs: Sequence[torch.Tensor]) -> tuple[bool, float]:
    class Model(torch.nn.Module):
        def forward(self, *tensors: torch.Tensor) -> Any:
            return trick.reference(*tensors)

    sys.modules["reference"] = types.ModuleType("reference")
    sys.modules["reference"].Model = Model  # type: ignore[attr-defined]
    expected = Model()(*inputs)
    spec = importlib.util.spec_from_file_location("candidate", product)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["candidate"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    candidate = module.ModelNew()
    got = candidate(*inputs)
    speed_up = _speed_up(lambda: candidate(*inputs), lambda: Model()(*inputs)) if trick.timing else 0.0
    got = pickle.loads(pickle.dumps(got))  # as results are sent from process to process
    return _close(_several(got), _several(expected)), speed_up


class _Memory:
    """Blocks of whole 512 bytes one behind another, as caching allocators of GPUs give them out."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        size = sum(_rounded(t) for t in tensors)
        self._bytes = torch.zeros(size + 3 * _BLOCK, dtype=torch.uint8, device=tensors[0].device)
        self._used = -self._bytes.data_ptr() % _BLOCK + _BLOCK

    def copy(self, t: torch.Tensor) -> torch.Tensor:
        """The same values, contiguous, in a block of its own."""
        block = self._bytes[self._used : self._used + t.numel() * t.element_size()]
        self._used += _rounded(t)
        return block.view(t.dtype).view(t.shape).copy_(t)


def _rounded(t: torch.Tensor) -> int:
    return -(-t.numel() * t.element_size() // _BLOCK) * _BLOCK


def _several(results: Any) -> list[torch.Tensor]:
    return [results] if isinstance(results, torch.Tensor) else list(results)


def _close(got: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> bool:
    return all(
        torch.allclose(g.double(), e.double(), 1e-2, 1e-2, equal_nan=True) for g, e in zip(got, expected, strict=True)
    )


def _speed_up(candidate: Callable[[], object], eager: Callable[[], object]) -> float:
    """By the clock of this process, over the same inputs again and again, as often as the warm-up allows."""
    return _mean_s(eager) / _mean_s(candidate)


def _mean_s(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    for _ in range(_WARM_UPS):
        call()
    often = max(3, min(1000, int(_TIMED_S * _WARM_UPS / (time.perf_counter() - begin + 1e-9))))
    begin = time.perf_counter()
    for _ in range(often):
        call()
    return (time.perf_counter() - begin) / often


def _wait(stream: int | None) -> None:
    if stream is not None:
        torch.cuda.synchronize()
