from __future__ import annotations

import pytest

from tests.support.sessions import cpu_device
from torch_forge.knowledge import roofline

# 10 GB/s and 100 Gflop/s: 1 MB takes 100 us, 1 Mflop 10 us.
CPU = cpu_device()
GPU = cpu_device(type="cuda", copy_gb_per_s=4000.0, flops_per_s=60e12)


@pytest.mark.parametrize(
    ("bytes_moved", "flops", "bound", "kind"),
    [
        (1_000_000, 0, 100.0, "memory"),
        (1_000_000, 100_000_000, 1000.0, "compute"),
        (100_000, 1_000_000, 10.0, "memory"),
        (100, 0, 0.01, "latency"),
        (0, 0, 0.0, "latency"),
    ],
)
def test_bound(bytes_moved, flops, bound, kind):
    assert roofline.bound_us(bytes_moved, flops, CPU) == pytest.approx(bound)
    assert roofline.classify(bytes_moved, flops, CPU) == kind


def test_latency_floor_is_the_launch():
    assert roofline.classify(8_000_000, 0, GPU) == "latency"  # 2 us
    assert roofline.classify(16_000_000, 0, GPU) == "memory"
    assert roofline.headroom_us(10.0, 8_000_000, 0, GPU) == pytest.approx(7.0)


def test_headroom_is_never_negative():
    assert roofline.headroom_us(50.0, 1_000_000, 0, CPU) == 0.0
    assert roofline.headroom_us(150.0, 1_000_000, 0, CPU) == pytest.approx(50.0)


def test_unknown_speed_gives_no_bound():
    assert roofline.bound_us(1_000_000, 1_000_000, cpu_device(copy_gb_per_s=0.0, flops_per_s=0.0)) == 0.0


def test_percent_of_bound():
    assert roofline.percent_of_bound(84.0, 63.0) == pytest.approx(75.0)


@pytest.mark.parametrize("measured_us", [0.0, -1.0, float("nan")])
def test_missing_time_is_never_fast(measured_us):
    with pytest.raises(ValueError, match="not a measured time"):
        roofline.percent_of_bound(measured_us, 63.0)
