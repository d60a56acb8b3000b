"""Write the glue of an operator: the C++ file that turns a kernel into ``torch_forge::<name>_<digest>``.

All logic is in ``include/forge_glue.h``; the text written here only fixes the name and the number of tensors. The schema
is not in the glue but defined from Python (``registry``): two backends can then share one operator, and the operator gets
its tags on every torch version.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from pathlib import Path

from torch_forge.errors import UsageError
from torch_forge.records.kernels import Binding
from torch_forge.records.tensors import DTYPES, TensorSpec

INCLUDE_DIR = Path(__file__).resolve().parent.parent / "include"
"""The folder with ``forge.h`` and ``forge_glue.h``; the compiler needs it in its include path."""
NAMESPACE = "torch_forge"
FORMAT = 1
"""Of the words that describe a binding; ``kFormat`` in ``forge_glue.h``."""
LONGEST_SLUG = 48

_DTYPE_CODES = {name: code for code, name in enumerate(DTYPES)}


def op_name(name: str, digest: str) -> str:
    """``torch_forge::<slug>_<digest>``, valid as an operator name whatever characters ``name`` has."""
    slug = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:LONGEST_SLUG].strip("_") or "op"
    if slug[0].isdigit():
        slug = f"op_{slug}"
    if not re.fullmatch(r"[0-9a-f]+", digest):
        raise UsageError(f"{digest!r} is not a digest", advice="Pass Problem.digest.")
    return f"{NAMESPACE}::{slug}_{digest}"


def schema(qualified: str, input_count: int, output_count: int) -> str:
    """The operator's schema; no input is written and no output aliases one."""
    arguments = ", ".join(f"Tensor i{i}" for i in range(input_count))
    results = "Tensor" if output_count == 1 else f"({', '.join(['Tensor'] * output_count)})"
    return f"{qualified.partition('::')[2]}({arguments}) -> {results}"


def glue_source(name: str, digest: str, input_count: int, output_count: int, backend: str) -> str:
    """C++ text; needs ``INCLUDE_DIR`` and torch's headers, no CUDA toolkit even for ``cuda``. Raises UsageError."""
    if input_count < 1 or output_count < 1:
        raise UsageError(f"an operator needs an input and an output, not {input_count} and {output_count}")
    if backend not in ("cpu", "cuda"):
        raise UsageError(f"no backend {backend!r}", advice="Use 'cpu' or 'cuda'.")
    return (
        f"// Glue of one operator, written by torch_forge (forge_glue.h {_header_digest()}).\n"
        f'#define FORGE_OP "{op_name(name, digest).partition("::")[2]}"\n'
        f'#define FORGE_DIGEST "{digest}"\n'
        f"#define FORGE_INPUTS {input_count}\n"
        f"#define FORGE_OUTPUTS {output_count}\n"
        f"#define FORGE_CUDA {int(backend == 'cuda')}\n"
        '#include "forge_glue.h"\n'
    )


@lru_cache(maxsize=1)
def _header_digest() -> str:
    """Puts the header's contents into the text, so that a cache keyed by the text notices a new header."""
    files = (INCLUDE_DIR / "forge.h", INCLUDE_DIR / "forge_glue.h")
    return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()[:16]


def binding_words(binding: Binding, device_index: int | None = None) -> list[int]:
    """A binding as ``forge_bind`` reads it; ``device_index`` limits it to one GPU."""
    head = [FORMAT, -1 if device_index is None else device_index, binding.align_bytes, binding.config]
    head += [binding.fallback_config, binding.workspace_bytes, len(binding.dims), *binding.dims]
    return head + [word for spec in (*binding.inputs, *binding.outputs) for word in _tensor_words(spec)]


def _tensor_words(spec: TensorSpec) -> list[int]:
    return [_DTYPE_CODES[spec.dtype], len(spec.shape), *spec.shape, *spec.stride]
