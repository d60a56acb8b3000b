"""The text of the glue, and a binding as the glue reads it."""

from __future__ import annotations

import pytest

from torch_forge.dispatch.glue import INCLUDE_DIR, binding_words, glue_source, op_name, schema
from torch_forge.errors import UsageError
from torch_forge.records.kernels import Binding
from torch_forge.records.tensors import DTYPES, contiguous


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("softmax", "torch_forge::softmax_0a"),
        ("Add+RMS Norm!", "torch_forge::add_rms_norm_0a"),
        ("2d_pool", "torch_forge::op_2d_pool_0a"),
        ("", "torch_forge::op_0a"),
        ("é", "torch_forge::op_0a"),
        ("x" * 90, f"torch_forge::{'x' * 48}_0a"),
    ],
    ids=["plain", "punctuation", "digit-first", "empty", "not-ascii", "long"],
)
def test_any_problem_name_gives_a_valid_operator_name(name: str, expected: str) -> None:
    assert op_name(name, "0a") == expected


def test_a_digest_must_be_one() -> None:
    with pytest.raises(UsageError, match="not a digest"):
        op_name("softmax", "0a; int main")


@pytest.mark.parametrize(
    ("counts", "expected"),
    [((1, 1), "f_0a(Tensor i0) -> Tensor"), ((2, 3), "f_0a(Tensor i0, Tensor i1) -> (Tensor, Tensor, Tensor)")],
    ids=["one-output", "three-outputs"],
)
def test_schema_has_no_mutation_and_no_aliases(counts: tuple[int, int], expected: str) -> None:
    assert schema(op_name("f", "0a"), *counts) == expected


@pytest.mark.parametrize(
    ("counts", "backend"), [((0, 1), "cpu"), ((1, 0), "cpu"), ((1, 1), "xpu")], ids=["no-input", "no-output", "backend"]
)
def test_unusable_glue_is_a_usage_error(counts: tuple[int, int], backend: str) -> None:
    with pytest.raises(UsageError):
        glue_source("f", "0a", *counts, backend)


def test_glue_text_differs_by_backend_and_names_the_header_version() -> None:
    cpu, cuda = (glue_source("f", "0a", 1, 1, backend) for backend in ("cpu", "cuda"))
    assert cpu != cuda
    assert "forge_glue.h" in cpu.splitlines()[0]
    assert cpu.splitlines()[1:] == [
        '#define FORGE_OP "f_0a"',
        '#define FORGE_DIGEST "0a"',
        "#define FORGE_INPUTS 1",
        "#define FORGE_OUTPUTS 1",
        "#define FORGE_CUDA 0",
        '#include "forge_glue.h"',
    ]


def test_binding_words() -> None:
    spec = contiguous((2, 3), "bfloat16")
    out = contiguous((2,), "bool")
    binding = Binding((spec,), (out,), (7, 8), config=4, align_bytes=16, fallback_config=1, workspace_bytes=64)
    assert binding_words(binding) == [1, -1, 16, 4, 1, 64, 2, 7, 8, 3, 2, 2, 3, 3, 1, 9, 1, 2, 1]
    assert binding_words(binding, device_index=2)[1] == 2


def test_element_type_codes_agree_with_the_header() -> None:
    header = (INCLUDE_DIR / "forge.h").read_text()
    for code, name in enumerate(DTYPES):
        assert f"FORGE_{name.upper()} = {code}" in header
