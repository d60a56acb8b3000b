"""A library that cannot be loaded is one clear error, whatever is wrong with it."""

from __future__ import annotations

import ctypes
import ctypes.util
from pathlib import Path

import pytest

from torch_forge.machine.loader import LoadError, load_glue, load_kernel


@pytest.mark.parametrize("load", [load_kernel, load_glue])
@pytest.mark.parametrize(
    "content", [None, b"", b"\x7fELF" + b"\x00" * 60, b"not a library"], ids=["missing", "empty", "cut", "text"]
)
def test_what_is_no_library(tmp_path: Path, load, content: bytes | None):
    path = tmp_path / "kernel.so"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(LoadError, match=r"kernel\.so") as caught:
        load(path)
    assert "build again" in caught.value.advice


def test_a_library_without_the_entry_point():
    name = ctypes.util.find_library("m")
    path = next(
        line.split()[-1]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "/libm" in line or "/libc.so" in line
    )
    assert name
    with pytest.raises(LoadError, match="does not export forge_launch"):
        load_kernel(path)
