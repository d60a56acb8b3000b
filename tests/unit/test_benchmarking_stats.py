"""Medians, intervals, pairs and the choice of quiet rounds, on numbers made up for the purpose."""

from __future__ import annotations

import numpy as np
import pytest

from torch_forge.benchmarking.clock import calls_per_sample, waited_us
from torch_forge.benchmarking.stats import Round, median_interval, paired, quiet_rounds, speedup, timing
from torch_forge.errors import UsageError

NOISE = np.random.default_rng(1).lognormal(0.0, 0.1, 200)


def test_median_and_interval():
    middle, low, high = median_interval((10 * NOISE).tolist())
    assert middle == pytest.approx(float(np.median(10 * NOISE)))
    assert 9.5 < low < middle < high < 10.5


@pytest.mark.parametrize("samples", [[5.0], [5.0, 5.0, 5.0]], ids=["one", "equal"])
def test_without_spread_the_interval_is_the_median(samples: list[float]):
    assert median_interval(samples) == (5.0, 5.0, 5.0)


@pytest.mark.parametrize("samples", [[], [1.0, float("nan")], [float("inf")]], ids=["none", "nan", "inf"])
def test_no_median_of_nothing_or_of_nonsense(samples: list[float]):
    with pytest.raises(UsageError):
        median_interval(samples)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(7)
    covered = 0
    for _ in range(100):
        _, low, high = median_interval(rng.normal(50.0, 5.0, 40).tolist())
        covered += low <= 50.0 <= high
    assert covered >= 88


def test_intervals_are_reproducible():
    assert timing(NOISE.tolist()) == timing(NOISE.tolist())


def test_a_common_drift_cancels_in_pairs():
    drift = np.linspace(1.0, 3.0, 100)
    found = paired(4, (30 * drift).tolist(), (20 * drift).tolist())
    assert found.config == 4
    assert (found.ratio, found.ratio_low, found.ratio_high) == pytest.approx((1.5, 1.5, 1.5))
    assert found.eager.high_us > found.eager.low_us


def test_a_few_wild_samples_move_neither_the_ratio_nor_its_interval_far():
    eager, ours = (20 * NOISE).tolist(), (10 * NOISE).tolist()
    for k in range(0, 200, 20):
        ours[k] *= 1000
    found = paired(0, eager, ours)
    assert found.ratio == pytest.approx(2.0, rel=0.05)
    assert found.ratio_low > 1.8


def test_equal_sides_are_no_speedup():
    rng = np.random.default_rng(3)
    claims = 0
    for _ in range(200):
        a, b = rng.lognormal(2.0, 0.1, (2, 60))
        claims += speedup(a.tolist(), b.tolist())[1] > 1.03
    assert claims <= 5


def test_pairs_need_partners():
    with pytest.raises(UsageError, match="no pairs"):
        paired(0, [1.0, 2.0], [1.0])


def rounds(*waited: float) -> list[Round]:
    return [
        Round({"eager": 100.0 + k, "0": 50.0}, {"eager": 100.0, "0": 50.0}, {"eager": w, "0": 0.0})
        for k, w in enumerate(waited)
    ]


def test_only_quiet_rounds_count_if_there_are_enough():
    taken, quiet = quiet_rounds(rounds(0, 0, 9000, 1, 0, 0, 500, 0), ("eager", "0"))
    assert quiet
    assert [r.us["eager"] for r in taken] == [100, 101, 103, 104, 105, 107]


def test_on_a_busy_machine_the_least_disturbed_rounds_are_taken_and_said_to_be_so():
    taken, quiet = quiet_rounds(rounds(900, 800, 700, 600, 500, 400, 0, 0), ("eager", "0"))
    assert not quiet
    assert sorted(r.us["eager"] for r in taken) == [103, 104, 105, 106, 107]


def test_only_the_sides_in_question_have_to_be_quiet():
    assert quiet_rounds(rounds(900, 900, 900, 900, 900), ("0",)) == (rounds(900, 900, 900, 900, 900), True)


@pytest.mark.parametrize(("call_us", "calls"), [(0.0, 32), (1.0, 20), (5.0, 4), (19.0, 1), (5000.0, 1)])
def test_short_calls_share_a_sample(call_us: float, calls: int):
    assert calls_per_sample(call_us) == calls


def test_the_time_waited_for_a_core_only_grows():
    assert 0.0 <= waited_us() <= waited_us()
