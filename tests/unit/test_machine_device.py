"""Device facts: read, not guessed, and without touching CUDA for the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_forge.errors import DeviceError
from torch_forge.machine import device
from torch_forge.settings import Settings

SETTINGS = Settings.resolve({"HOME": "/nonexistent"})


def test_the_cpu_has_plausible_facts():
    import torch

    info = device.device_info("cpu", SETTINGS)
    assert (info.type, info.units, info.index) == ("cpu", torch.get_num_threads(), 0)
    assert info.arch in {"avx512", "avx2", "neon", "generic"}
    assert 1 << 12 <= info.smem_bytes <= info.l2_bytes <= info.memory_bytes
    assert 0.1 < info.copy_gb_per_s < 10_000
    assert info.flops_per_s > 1e9
    assert info.features == tuple(sorted(info.features))


def test_measured_once_and_not_part_of_the_key():
    measured, asked = device.device_info("cpu", SETTINGS), device.device_info("cpu", SETTINGS, measure=False)
    assert device.device_info("cpu", SETTINGS) is measured
    assert asked.copy_gb_per_s == 0.0
    assert asked.key == measured.key


@pytest.mark.parametrize(
    ("march", "arch"), [("x86-64", "generic"), ("x86-64-v3", "avx2"), ("x86-64-v4", "avx512")], ids=lambda v: v
)
def test_a_named_instruction_set_is_another_device(march: str, arch: str):
    settings = Settings.resolve({"HOME": "/nonexistent"}, march=march)
    info = device.device_info("cpu", settings, measure=False)
    assert (info.arch, info.features) == (arch, (f"march={march}",))
    assert info.key != device.device_info("cpu", SETTINGS, measure=False).key


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cuda:-1", "MIG-4a1f", "GPU-12ab", "", "mps"])
def test_unknown_names(name: str):
    with pytest.raises(DeviceError, match="unknown device"):
        device.device_info(name, SETTINGS)


def test_an_ordinal_that_is_not_there():
    with pytest.raises(DeviceError):
        device.device_info("cuda:99", SETTINGS)


@pytest.mark.parametrize(
    ("caches", "expected"),
    [
        ({"index0": ("1", "Data", "48K"), "index1": ("1", "Instruction", "64K"), "index2": ("2", "Unified", "2M"),
          "index3": ("3", "Unified", "36M")}, (48 << 10, 2 << 20, 36 << 20)),
        ({"index0": ("1", "Data", "64K"), "index1": ("2", "Unified", "1024K")}, (64 << 10, 1 << 20, 1 << 20)),
        ({}, (device.FALLBACK_L1, device.FALLBACK_L2, device.FALLBACK_LLC)),
        ({"index0": ("1", "Data", "")}, (device.FALLBACK_L1, device.FALLBACK_L2, device.FALLBACK_LLC)),
    ],
    ids=["three levels", "two levels", "no sysfs", "empty files"],
)  # fmt: skip
def test_caches(tmp_path: Path, caches: dict[str, tuple[str, str, str]], expected: tuple[int, int, int]):
    for name, values in caches.items():
        (tmp_path / name).mkdir()
        for file, value in zip(("level", "type", "size"), values, strict=True):
            (tmp_path / name / file).write_text(f"{value}\n")
    assert device.cpu_caches(tmp_path) == expected


@pytest.mark.parametrize(
    ("flag", "kept"),
    [("avx2", True), ("avx512_vnni", True), ("amx_tile", True), ("sse4_2", True), ("smep", False), ("asimddp", True),
     ("hypervisor", False), ("constant_tsc", False), ("sme2", True)],
)  # fmt: skip
def test_flags_that_a_compiler_may_use(flag: str, kept: bool):
    assert bool(device.VECTOR_FLAGS.fullmatch(flag)) is kept
