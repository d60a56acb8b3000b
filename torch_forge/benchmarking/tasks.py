"""The worker's half of timing: sides take turns in random order, raw samples leave.

A round times every side once on the same input sets; sides are eager and the configs of one candidate, or eager and
``torch.compile``. How many rounds there are depends on eager's time alone, so no candidate can shorten the plan. Outputs of
timed calls are kept and compared afterwards with the first output for the same inputs.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from torch_forge.benchmarking.clock import Clock, calls_per_sample, clock_for
from torch_forge.benchmarking.sides import Outputs, Side, Station, eager_side, native_side
from torch_forge.benchmarking.stats import QUIET, Round
from torch_forge.graphs.execute import callable_for
from torch_forge.graphs.inputs import draw_inputs
from torch_forge.graphs.place import Placed
from torch_forge.records.codec import from_plain, to_plain
from torch_forge.records.problem import Graph, Problem

MIN_ROUNDS = 8
_SETS = (2, 8)
_SETS_BYTES = 1 << 28
"""Input sets are drawn until they hold this much, at least 2 and at most 8."""
_CHECKED = 0.25
"""Share of the timed samples whose outputs are compared afterwards; one more call at the end always is."""
_HOPELESS = 20.0
"""Times eager: a side that much slower is timed three times and no more."""
_WALL_SLACK_US = 50.0

OverSets = Callable[[int], Outputs]
"""One call of a side on the input set with this number."""


def time_candidate(payload: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """Eager against configs of a candidate.

    payload: ``problem``, ``library``, ``dims``, ``configs``, ``workspace_bytes``, and what ``_Bench`` takes. Returns
    ``rounds`` (``stats.Round``; sides are ``eager`` and the configs) and ``faults``: why a config's timing does not count.
    """
    del scratch
    problem: Problem = from_plain(Problem, payload["problem"])
    with _Bench(problem.graph, payload).ready() as bench, torch.no_grad():
        station = Station(problem.graph, bench.device, bench.stream, payload["threads"])
        kernel = {name: payload[name] for name in ("library", "dims", "workspace_bytes")}
        sides = {"eager": bench.eager}
        for config in payload["configs"]:
            sides[str(config)] = bench.over_sets(native_side(station, {**kernel, "config": config}))
        faults = bench.first_outputs(sides)
        rounds = bench.rounds({k: s for k, s in sides.items() if k not in faults}, faults)
    return {"rounds": [to_plain(r) for r in rounds], "faults": faults}


def time_peers(payload: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """Eager against ``torch.compile`` of the same graph; no candidate code runs.

    payload: ``problem``, ``inductor`` (False: eager only) and what ``_Bench`` takes. Returns ``rounds`` and ``faults``.
    """
    del scratch
    problem: Problem = from_plain(Problem, payload["problem"])
    with _Bench(problem.graph, payload).ready() as bench, torch.no_grad():
        sides = {"eager": bench.eager}
        if payload["inductor"]:
            compiled = _inductor(problem.graph)
            sides["inductor"] = bench.over_sets(lambda inputs: partial(compiled, *inputs))
        faults = bench.first_outputs(sides)
        rounds = bench.rounds({k: s for k, s in sides.items() if k not in faults}, faults)
    return {"rounds": [to_plain(r) for r in rounds], "faults": faults}


def _inductor(graph: Graph) -> Callable[..., Outputs]:
    """The compiled graph; compiled at its first call, in this process."""
    import torch._inductor.config as inductor_config

    inductor_config.compile_threads = 1
    compiled: Callable[..., Outputs] = torch.compile(callable_for(graph), dynamic=False, fullgraph=True)
    return compiled


class _Bench:
    """Input sets at different addresses, the clock, and the plan.

    payload: ``device``, ``cache_bytes``, ``threads``, ``seed``, ``budget_s``, ``max_rounds``.
    """

    def __init__(self, graph: Graph, payload: dict[str, Any]) -> None:
        self.graph, self.payload = graph, payload
        self.device = torch.device(payload["device"])
        self.random = random.Random(payload["seed"])
        self.stream = 0
        self.firsts: dict[str, list[Outputs]] = {}

    @contextmanager
    def ready(self) -> Iterator[_Bench]:
        """On CUDA everything runs on a stream of its own."""
        torch.set_num_threads(self.payload["threads"])
        if self.device.type != "cuda":
            self._draw()
            yield self
            return
        torch.cuda.set_device(self.device)
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self.stream = stream.cuda_stream
        with torch.cuda.stream(stream):
            self._draw()
            yield self
            torch.cuda.synchronize(self.device)

    def _draw(self) -> None:
        """Dense random inputs: what is all zeros draws less power and clocks higher."""
        self.clock: Clock = clock_for(self.device, self.payload["cache_bytes"])
        held = sum(s.numel * s.itemsize for s in self.graph.inputs)
        least, most = _SETS
        number = max(least, min(most, _SETS_BYTES // max(held, 1)))
        seed = self.payload["seed"]
        self.sets: list[list[Placed]] = [
            draw_inputs(self.graph, seed=seed + k, distribution="normal", device=self.device) for k in range(number)
        ]
        self.eager = self.over_sets(eager_side(self.graph))

    def over_sets(self, side: Side) -> OverSets:
        """A side as a function of the number of an input set."""
        calls = [side([p.tensor for p in placed]) for placed in self.sets]
        return lambda number: calls[number]()

    def first_outputs(self, sides: dict[str, OverSets]) -> dict[str, str]:
        """Each side once on each set, compared with eager; what a side got wrong."""
        faults: dict[str, str] = {}
        for name, side in sides.items():
            try:
                self.firsts[name] = [_copy(side(number)) for number in range(len(self.sets))]
            except Exception as error:  # a compiler or a candidate may raise anything; the other sides go on
                if name == "eager":
                    raise
                faults[name] = f"{type(error).__name__}: {error}".splitlines()[0]
                continue
            for ours, eager in zip(self.firsts[name], self.firsts["eager"], strict=True):
                if not all(map(_alike, ours, eager)):
                    faults[name] = "its output is not eager's on the timed inputs"
        return faults

    def rounds(self, sides: dict[str, OverSets], faults: dict[str, str]) -> list[Round]:
        """Every side once a round, in random order, until enough rounds were quiet; late faults are added to ``faults``."""
        calls, count, hopeless = self._plan(sides)
        sides = {name: side for name, side in sides.items() if name not in {n for r in hopeless for n in r.us} - {"eager"}}
        if len(sides) == 1 and hopeless:
            return hopeless
        rounds: list[Round] = []
        deadline = time.perf_counter() + 2 * self.payload["budget_s"]
        quiet = 0
        while quiet < count and (len(rounds) < MIN_ROUNDS or time.perf_counter() < deadline):
            rounds.append(self._round(sides, calls, faults))
            quiet += rounds[-1].disturbance(sides) <= QUIET
        for name in sorted(set(sides) - {"eager"}):
            self._verify(name, [0], [sides[name](0)], faults)
        self._check_wall(sides, rounds, calls, faults)
        return hopeless + rounds

    def _round(self, sides: dict[str, OverSets], calls: int, faults: dict[str, str]) -> Round:
        start = self.random.randrange(len(self.sets))
        sets = [(start + k) % len(self.sets) for k in range(calls)]
        taken = {}
        for name in self.random.sample(sorted(sides), len(sides)):
            taken[name] = self.clock.sample(sides[name], sets, (start - 1) % len(self.sets))
        for name, sample in taken.items():
            if name != "eager" and self.random.random() < _CHECKED:
                self._verify(name, sets, sample.results, faults)
        return Round(
            {name: sample.call_us for name, sample in taken.items()},
            {name: sample.spent_us for name, sample in taken.items()},
            {name: sample.waited_us for name, sample in taken.items()},
        )

    def _plan(self, sides: dict[str, OverSets]) -> tuple[int, int, list[Round]]:
        """Calls per sample, rounds, and all there is to say of sides that are hopelessly slow.

        The plan follows from eager's time and the budget; candidates have no say in it.
        """
        eager_us = min(self.clock.wall_us(self.eager, [0, 1]) for _ in range(5))
        hopeless = []
        for name, side in sides.items():
            pair = [(self.clock.wall_us(self.eager, [1]), self.clock.wall_us(side, [1])) for _ in range(3)]
            if name != "eager" and min(us for _, us in pair) > _HOPELESS * max(eager_us, 100.0):
                hopeless += [Round({"eager": e, name: c}, {"eager": e, name: c}, {"eager": 0.0, name: 0.0}) for e, c in pair]
        calls = calls_per_sample(eager_us)
        begin = time.perf_counter()
        self.clock.sample(self.eager, [0] * calls, 1)
        round_s = (time.perf_counter() - begin) * len(sides)
        count = int(self.payload["budget_s"] / max(round_s, 1e-6))
        return calls, max(MIN_ROUNDS, min(self.payload["max_rounds"], count)), hopeless

    def _verify(self, name: str, sets: Sequence[int], results: Sequence[Any], faults: dict[str, str]) -> None:
        for number, outputs in zip(sets, results, strict=True):
            first = self.firsts[name][number]
            if not all(map(_same_bits, outputs, first)) and not all(map(_alike, outputs, self.firsts["eager"][number])):
                faults[name] = "a timed call gave another output than the first call on the same inputs"

    def _check_wall(self, sides: dict[str, OverSets], rounds: Sequence[Round], calls: int, faults: dict[str, str]) -> None:
        """Work on another stream or in a thread escapes the events but not the wall."""
        if self.device.type != "cuda":
            return
        sets = [k % len(self.sets) for k in range(max(calls, 4))]
        event_us = {name: statistics.median(r.us[name] for r in rounds) for name in sides}
        excess_us = {name: min(self.clock.wall_us(s, sets) for _ in range(3)) - event_us[name] for name, s in sides.items()}
        for name, us in excess_us.items():
            if us > max(2 * abs(excess_us["eager"]), 0.5 * event_us[name]) + _WALL_SLACK_US:
                faults[name] = f"timing inconsistent: {us:.0f} us a call more by the wall than by the events"


def _copy(outputs: Outputs) -> Outputs:
    return tuple(o.clone() for o in outputs)


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return a.shape == b.shape and torch.equal(a.view(bits), b.view(bits))


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Roughly equal: a sanity check of timed outputs; the judge is the one who compares closely."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point():
        return a.numel() == 0 or int((a != b).sum()) <= max(1, a.numel() // 1000)
    rough = 2e-2 if a.element_size() == 2 else 1e-3
    x, y = a.double(), b.double()
    finite = torch.isfinite(x) & torch.isfinite(y)
    if not torch.equal(torch.isnan(x), torch.isnan(y)):
        return False
    error, scale = (x - y)[finite].square().sum(), y[finite].square().sum()
    return bool(error <= rough**2 * scale)
