"""The last gate for a function: the whole call, forged against eager and ``torch.compile``, in the user's own process.

Everything is measured as a user would call it, through the dispatcher, in one interleaved run.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from torch_forge.benchmarking.clock import clock_for
from torch_forge.benchmarking.stats import median_interval, speedup
from torch_forge.graphs.execute import callable_for, upcast_callable
from torch_forge.graphs.partition import Rejected
from torch_forge.knowledge.roofline import memory_us
from torch_forge.machine.locks import device_lane
from torch_forge.profiling.holdings import tensors_of
from torch_forge.profiling.workload import Call
from torch_forge.records.outcomes import ErrorStats
from torch_forge.records.session import RegionResult
from torch_forge.search.workshop import Workshop

if TYPE_CHECKING:
    from torch_forge.functions import Traced

ROUNDS = 60
LEAST_ROUNDS = 9
BUDGET_S = 3.0
LATENCY_BOUND_US = 5.0
"""Below this bound the launch dominates, and what counts on a GPU is the wall time of a call."""
CALLS_PER_SAMPLE = 32
"""For wall times of such short calls."""
PEER_NAMES = {"eager": "eager", "inductor": "torch.compile"}


@dataclass(frozen=True)
class Race:
    """Medians in microseconds by contestant; ratios of the peers' times to the forged time, with their intervals."""

    times_us: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class FunctionCheck:
    """One function at one call, with what was decided for its regions."""

    name: str
    fn: Callable[..., Any]
    call: Call
    traced: Traced
    parts: tuple[RegionResult, ...]
    rejected: tuple[Rejected, ...]
    shop: Workshop

    def result(self, run: Callable[..., Any] | None, *, measure: bool) -> RegionResult:
        """The whole function as one region; ``installed`` only if it is not slower than either peer.

        run: the forged function of flat tensors; None if nothing was forged. measure: race it now; else the figures are
        those of its regions.
        """
        began_s = time.monotonic()
        forged = torch.no_grad()(run) if run is not None else None
        errors = self._errors(forged) if forged is not None else (None, None)
        race = self._race(forged) if measure else self._sums(forged is not None)
        verdict, why = self._verdict(forged is not None, race)
        return self._region(verdict, why, race, errors, time.monotonic() - began_s)

    def _region(
        self, verdict: str, why: str, race: Race, errors: tuple[ErrorStats | None, ErrorStats | None], seconds: float
    ) -> RegionResult:
        problem = self.traced.problem
        outcomes: Counter[str] = Counter()
        for part in self.parts:
            outcomes.update(part.outcomes)
        return RegionResult(
            name=self.name,
            problem=problem.digest,
            workload=problem.workload,
            calls=1,
            share=1.0,
            eager_us=race.times_us.get("eager", 0.0),
            inductor_us=race.times_us.get("inductor"),
            forge_us=race.times_us.get("forge"),
            bound_us=self.bound_us,
            verdict=verdict,
            why=why,
            origin=next((p.origin for p in self.parts if p.verdict == "installed"), ""),
            error=errors[0],
            eager_error=errors[1],
            from_cache=bool(self.parts) and all(p.from_cache for p in self.parts),
            outcomes=dict(outcomes),
            seconds=seconds + sum(p.seconds for p in self.parts),
        )

    @property
    def bound_us(self) -> float:
        """Time to move the function's inputs and outputs once at the copy bandwidth."""
        return memory_us(self.traced.problem.graph.min_bytes, self.shop.device)

    def _verdict(self, forged: bool, race: Race) -> tuple[str, str]:
        if not forged:
            reasons = [p.why for p in self.parts] or [r.why for r in self.rejected] or ["nothing in it has a template"]
            failed = any(p.verdict == "failed" for p in self.parts)
            return ("failed" if failed else "kept"), "; ".join(dict.fromkeys(reasons))
        for peer, (ratio, _, high) in race.ratios.items():
            if high < 1.0 or (peer == "inductor" and ratio < 1.0):
                times = f"{race.times_us[peer]:.1f} us against {race.times_us['forge']:.1f} us"
                others = "".join(f"; {p.name}: {p.why}" for p in self.parts if p.verdict != "installed")
                return "kept", f"{PEER_NAMES[peer]} is faster for the whole call: {times}{others}"
        gains = [f"{ratio:.2f}x {PEER_NAMES[peer]}" for peer, (ratio, _, _) in race.ratios.items()]
        return "installed", ", ".join([*gains, *race.notes]) or "from the cache"

    def _sums(self, forged: bool) -> Race:
        """Figures of an earlier run: what the regions took then."""
        known = [p for p in self.parts if p.eager_us > 0]
        if not known:
            return Race()
        times = {"eager": sum(p.eager_us for p in known)}
        if forged:
            times["forge"] = sum(p.forge_us or p.eager_us for p in known)
        return Race(times)

    def _errors(self, forged: Callable[..., Any]) -> tuple[ErrorStats | None, ErrorStats | None]:
        """RMS and worst distance from float64 of the forged and of the eager outputs."""
        graph, tensors = self.traced.problem.graph, self.traced.tensors
        with torch.no_grad():
            wide = upcast_callable(graph)(*tensors)
            ours = _distance(tensors_of(forged(*tensors)), wide)
            return ours, _distance(callable_for(graph)(*tensors), wide)

    def _race(self, forged: Callable[..., Any] | None) -> Race:
        fn, args, kwargs, tensors = self.fn, self.call.args, dict(self.call.kwargs), self.traced.tensors
        contestants: dict[str, Callable[[int], Any]] = {"eager": lambda _: fn(*args, **kwargs)}
        if forged is not None:
            contestants["forge"] = lambda _: forged(*tensors)
        notes: list[str] = []
        compiled = _compiled(fn, args, kwargs, notes) if self.shop.settings.peers == "both" else None
        if compiled is not None:
            contestants["inductor"] = lambda _: compiled(*args, **kwargs)
        with torch.no_grad(), device_lane(self.shop.device):
            samples = self._samples(contestants)
        times = {name: median_interval(us)[0] for name, us in samples.items()}
        if forged is None:
            return Race(times, {}, tuple(notes))
        ratios = {name: speedup(samples[name], samples["forge"]) for name in contestants if name != "forge"}
        return Race(times, ratios, tuple(notes))

    def _samples(self, contestants: dict[str, Callable[[int], Any]]) -> dict[str, list[float]]:
        """Microseconds by contestant, in rounds of random order."""
        device = self.shop.device
        where = torch.device(device.type, device.index) if device.type == "cuda" else torch.device("cpu")
        clock = clock_for(where, device.l2_bytes)
        wall = device.type == "cuda" and self.bound_us < LATENCY_BOUND_US
        samples: dict[str, list[float]] = {name: [] for name in contestants}
        order, rng, deadline = list(contestants), random.Random(self.shop.settings.seed), time.monotonic() + BUDGET_S
        for contestant in contestants.values():
            contestant(0)
        for number in range(ROUNDS):
            rng.shuffle(order)
            for name in order:
                one = contestants[name]
                us = clock.wall_us(one, range(CALLS_PER_SAMPLE)) if wall else clock.sample(one, (0,), 0).call_us
                samples[name].append(us)
            if number + 1 >= LEAST_ROUNDS and time.monotonic() > deadline:
                break
        return samples


def _compiled(fn: Callable[..., Any], args: Any, kwargs: Any, notes: list[str]) -> Callable[..., Any] | None:
    """The function under ``torch.compile``, compiled; None with a note if that fails."""
    try:
        compiled: Callable[..., Any] = torch.compile(fn, dynamic=False)
        with torch.no_grad():
            compiled(*args, **kwargs)
    except Exception as error:  # a compiler may fail in any way; then it is no peer
        notes.append(f"torch.compile failed: {type(error).__name__}")
        return None
    return compiled


def _distance(outputs: Sequence[torch.Tensor], wide: Sequence[torch.Tensor]) -> ErrorStats | None:
    """Over all floating-point outputs, finite elements only; None if there is none."""
    squares, count, worst = 0.0, 0, 0.0
    for a, b in zip(outputs, wide, strict=True):
        if not a.is_floating_point():
            continue
        for start in range(0, a.numel(), 1 << 26):
            part, reference = (t.reshape(-1)[start : start + (1 << 26)].double() for t in (a, b))
            error = (part - reference).abs().nan_to_num(0.0, 0.0, 0.0)
            squares += float(error.square().sum())
            worst = max(worst, float(error.max()))
        count += a.numel()
    return ErrorStats((squares / count) ** 0.5, worst, ()) if count else None
