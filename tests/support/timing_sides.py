"""Sides for the tests of the timing protocol: eager as a contender, honest and not. They run in workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torch_forge.benchmarking import clock
from torch_forge.benchmarking.sides import Outputs, Side, Station, eager_side


def eager(station: Station, payload: Mapping[str, Any]) -> Side:
    """Eager against itself."""
    return eager_side(station.graph)


def _changed(station: Station, change: Callable[[Callable[[], Outputs]], Any]) -> Side:
    """Eager, its calls in the hands of ``change``."""
    honest = eager_side(station.graph)

    def bind(inputs: Sequence[torch.Tensor]) -> Callable[[], Any]:
        call = honest(inputs)
        return lambda: change(call)

    return bind


def tires(station: Station, payload: Mapping[str, Any]) -> Side:
    """Right for some calls, as many as somebody might check; then always the same answer."""
    given: list[Outputs] = []

    def change(call: Callable[[], Outputs]) -> Outputs:
        given.append(call() if len(given) < payload["calls"] else tuple(o.clone() for o in given[0]))
        return given[-1]

    return _changed(station, change)


def precomputes(station: Station, payload: Mapping[str, Any]) -> Side:
    """Computes when it is given the inputs and hands that over when it is called."""
    honest = eager_side(station.graph)

    def bind(inputs: Sequence[torch.Tensor]) -> Callable[[], Outputs]:
        done = honest(inputs)()
        return lambda: done

    return bind


def late(station: Station, payload: Mapping[str, Any]) -> Side:
    """Returns at once; a thread fills the result in a moment later."""

    def change(call: Callable[[], Outputs]) -> Outputs:
        results = tuple(torch.zeros_like(o) for o in call())

        def fill() -> None:
            time.sleep(payload["seconds"])
            for result, value in zip(results, call(), strict=True):
                result.copy_(value)

        threading.Thread(target=fill, daemon=True).start()
        return results

    return _changed(station, change)


def elsewhere(station: Station, payload: Mapping[str, Any]) -> Side:
    """Launches on a stream of its own, for which nobody waits, and does the work many times over."""
    own = torch.cuda.Stream()

    def change(call: Callable[[], Outputs]) -> Outputs:
        own.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(own):
            for _ in range(payload["repeats"]):
                results = call()
        return results

    return _changed(station, change)


class Proxy(torch.Tensor):
    """A tensor that might compute when somebody reads it."""


def lazy(station: Station, payload: Mapping[str, Any]) -> Side:
    """Returns a tensor of a class of its own."""
    return _changed(station, lambda call: tuple(o.as_subclass(Proxy) for o in call()))


def stops_the_clock(station: Station, payload: Mapping[str, Any]) -> Side:
    """Sleeps, and takes that time out of the worker's clock."""
    stolen_ns = [0]
    now_ns = clock._now_ns
    clock._now_ns = lambda: now_ns() - stolen_ns[0]

    def change(call: Callable[[], Outputs]) -> Outputs:
        begin = now_ns()
        time.sleep(payload["seconds"])
        results = call()
        stolen_ns[0] += now_ns() - begin
        return results

    return _changed(station, change)
