"""Build a template's source and call it, for tests: g++ for the CPU, g++ with the CUDA emulator, or nvcc."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch

from tests.support.programs import Case, dtype_name
from torch_forge.records.kernels import Candidate
from torch_forge.records.tensors import DTYPES

INCLUDE = Path(__file__).parents[2] / "torch_forge" / "include"
EMULATOR = Path(__file__).parent / "cuda_emulator"
CPU = ("g++", "-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off")
EMULATED = (
    "g++",
    "-x",
    "c++",
    "-O0",
    "-mf16c",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-w",
    "-DFORGE_EMULATED",
    f"-I{EMULATOR}",
)
COMMON = ("-std=c++17", "-shared", f"-I{INCLUDE}")


class ForgeTensor(ctypes.Structure):
    """The struct of forge.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
    )


class Kernel:
    """A loaded ``forge_launch``."""

    def __init__(self, path: Path) -> None:
        self._launch = ctypes.CDLL(str(path)).forge_launch
        self._launch.argtypes = [
            ctypes.POINTER(ForgeTensor), ctypes.POINTER(ForgeTensor), ctypes.POINTER(ctypes.c_int64),
            ctypes.c_int64, ctypes.c_int64,
            ctypes.c_void_p, ctypes.c_void_p,
        ]  # fmt: skip

    def __call__(
        self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], dims: Sequence[int], *,
        config: int = 0, threads: int = 2,
        stream: int | None = None,
    ) -> int:  # fmt: skip
        """The status that forge_launch returned."""
        return int(
            self._launch(
                tensor_array(inputs),
                tensor_array(outputs),
                (ctypes.c_int64 * max(1, len(dims)))(*dims),
                config,
                threads,
                None,
                stream,
            )
        )


def tensor_array(tensors: Sequence[torch.Tensor]) -> ctypes.Array[ForgeTensor]:
    """Tensors as forge.h describes them; the sizes live as long as the array."""
    array = (ForgeTensor * max(1, len(tensors)))()
    array.keep = []
    for slot, t in zip(array, tensors, strict=False):
        sizes, strides = ((ctypes.c_int64 * max(1, t.dim()))(*values) for values in (t.shape, t.stride()))
        array.keep += [sizes, strides]
        slot.data, slot.sizes, slot.strides, slot.ndim = t.data_ptr(), sizes, strides, t.dim()
        slot.dtype = list(DTYPES).index(dtype_name(t.dtype))
    return array


def build(
    source: str, folder: Path, command: Sequence[str], *, suffix: str = ".cpp", pic: Sequence[str] = ("-fPIC",)
) -> Path:
    """The shared library of a source; fails the test with the compiler's words otherwise."""
    stem = folder / hashlib.sha256(source.encode()).hexdigest()[:16]
    file, library = stem.with_suffix(suffix), stem.with_suffix(".so")
    file.write_text(source)
    done = subprocess.run(
        [*command, *COMMON, *pic, str(file), "-o", str(library)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stderr[:4000]}\n{source}"
    return library


def outputs_for(case: Case, device: str = "cpu") -> list[torch.Tensor]:
    """Uninitialised results, filled with something that no kernel means to write."""
    found = []
    for expected, dtype in zip(case.expected, case.out_dtypes, strict=True):
        t = torch.empty(expected.shape, dtype=dtype, device=device)
        found.append(t.fill_(float("nan")) if dtype.is_floating_point else t.fill_(1))
    return found


def difference(case: Case, outputs: Sequence[torch.Tensor]) -> str:
    """What is wrong with the results, or nothing. float64 expectations allow 8 units of the output's type."""
    for k, (got, want) in enumerate(zip(outputs, case.expected, strict=True)):
        got = got.cpu()
        if not torch.equal(got.isnan(), want.isnan()):
            return f"output {k}: NaN in other places"
        if want.dtype is not torch.float64:
            wrong = (got != want) & ~got.isnan()
            if wrong.any():
                return f"output {k}: {int(wrong.sum())} elements differ, first at {wrong.nonzero()[0].tolist()}"
        elif got.numel():
            scale = want.nan_to_num().abs() + want.nan_to_num().abs().mean() + 1e-30
            error = ((got.double() - want).nan_to_num().abs() / scale).max().item() / torch.finfo(got.dtype).eps
            if error > 8:
                return f"output {k}: off by {error:.1f} units of {got.dtype}"
    return ""


def run_all_configs(case: Case, candidate: Candidate, kernel: Kernel) -> list[str]:
    """Each config's failure, if any."""
    failures = []
    for config in range(len(candidate.configs)):
        outputs = outputs_for(case)
        status = kernel(case.inputs, outputs, case.lowered.values, config=config)
        wrong = f"status {status}" if status else difference(case, outputs)
        failures += [f"{candidate.author}, config {config}: {wrong}"] if wrong else []
    return failures
