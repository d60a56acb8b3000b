"""Whole models are run in turns, the order flipped from pair to pair."""

from __future__ import annotations

from torch_forge.benchmarking.model import MAX_PAIRS, MIN_PAIRS, time_models


def test_both_run_equally_often_and_neither_always_first():
    order: list[str] = []
    found = time_models(lambda: order.append("e"), lambda: order.append("f"), budget_s=0.01, device="cpu")
    assert MIN_PAIRS <= found.pairs <= MAX_PAIRS
    assert order.count("e") == order.count("f") == found.pairs + 1
    pairs = ["".join(order[k : k + 2]) for k in range(2, len(order), 2)]
    assert set(pairs) == {"ef", "fe"}
    assert found.low <= found.speedup <= found.high


def test_there_are_enough_pairs_whatever_the_budget():
    assert time_models(lambda: None, lambda: None, budget_s=0.0, device="cpu").pairs == MIN_PAIRS
