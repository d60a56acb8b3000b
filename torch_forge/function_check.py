"""The last gate for a function: the whole call, forged against eager and ``torch.compile``, in the user's own process.

Everything is measured as a user would call it, through the guard and the dispatcher, in one interleaved run.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from torch_forge.benchmarking.clock import clock_for
from torch_forge.benchmarking.stats import median_interval, speedup
from torch_forge.graphs.execute import upcast_callable
from torch_forge.graphs.partition import Rejected
from torch_forge.machine.locks import device_lane
from torch_forge.profiling.holdings import tensors_of
from torch_forge.profiling.workload import Call
from torch_forge.records.outcomes import ErrorStats
from torch_forge.records.session import RegionResult
from torch_forge.search.workshop import Workshop

if TYPE_CHECKING:
    from torch_forge.dispatch.call import ForgedFunction
    from torch_forge.functions import Traced

ROUNDS = 60
BUDGET_S = 3.0
LATENCY_BOUND_US = 5.0
"""Below this bound the launch dominates, and what counts is the wall time of a call."""


def check_function(
    result: ForgedFunction,
    call: Call,
    traced: Traced,
    run: Callable[..., Any] | None,
    parts: Sequence[RegionResult],
    rejected: Sequence[Rejected],
    shop: Workshop,
) -> RegionResult:
    """The whole function's result; ``installed`` only if it is right and no slower than either peer."""
    began_s = time.monotonic()
    graph = traced.problem.graph
    bound_us = graph.min_bytes / (shop.device.copy_gb_per_s * 1e3)
    outcomes: Counter[str] = Counter()
    for part in parts:
        outcomes.update(part.outcomes)
    origin = next((p.origin for p in parts if p.verdict == "installed"), "")
    cached = bool(parts) and all(p.from_cache for p in parts)

    def finish(
        verdict: str, why: str, times: dict[str, float], errors: tuple[ErrorStats | None, ErrorStats | None]
    ) -> RegionResult:
        return RegionResult(
            name=result.name,
            problem=traced.problem.digest,
            workload=traced.problem.workload,
            calls=1,
            share=1.0,
            eager_us=times.get("eager", 0.0),
            inductor_us=times.get("inductor"),
            forge_us=times.get("forge"),
            bound_us=bound_us,
            verdict=verdict,
            why=why,
            origin=origin,
            error=errors[0],
            eager_error=errors[1],
            from_cache=cached,
            outcomes=dict(outcomes),
            seconds=time.monotonic() - began_s + sum(p.seconds for p in parts),
        )

    if run is None:
        reasons = [p.why for p in parts] or [r.why for r in rejected] or ["nothing in it has a template"]
        return finish(
            "failed" if any(p.verdict == "failed" for p in parts) else "kept",
            "; ".join(dict.fromkeys(reasons)),
            {},
            (None, None),
        )
    forged = torch.no_grad()(run)
    errors = _errors(traced, forged)
    if cached:  # decided and measured in an earlier run
        times = {"eager": sum(p.eager_us for p in parts), "forge": sum(p.forge_us or p.eager_us for p in parts)}
        return finish("installed", "from the cache", times, errors)
    with torch.no_grad(), device_lane(shop.device):
        times, ratios, notes = _race(result.reference, call, traced, forged, shop, bound_us)
    slower = [peer for peer, (ratio, _, high) in ratios.items() if high < 1.0 or (peer == "inductor" and ratio < 1.0)]
    if slower:
        return finish(
            "kept", f"{slower[0]} is faster: {times[slower[0]]:.1f} us against {times['forge']:.1f} us", times, errors
        )
    gains = ", ".join(
        f"{ratio:.2f}x {'torch.compile' if peer == 'inductor' else peer}" for peer, (ratio, _, _) in ratios.items()
    )
    return finish("installed", "; ".join([gains, *notes]), times, errors)


def _errors(traced: Traced, forged: Callable[..., Any]) -> tuple[ErrorStats | None, ErrorStats | None]:
    """RMS and worst distance from float64 of the forged and the eager outputs, over all floating-point outputs."""
    from torch_forge.graphs.execute import callable_for

    with torch.no_grad():
        wide = upcast_callable(traced.problem.graph)(*traced.tensors)
        eager = callable_for(traced.problem.graph)(*traced.tensors)
        ours = tensors_of(forged(*traced.tensors))
        return _distance(ours, wide), _distance(eager, wide)


def _distance(outputs: Sequence[torch.Tensor], wide: Sequence[torch.Tensor]) -> ErrorStats | None:
    squares, count, worst, where = 0.0, 0, 0.0, ()
    for a, b in zip(outputs, wide, strict=True):
        if not a.is_floating_point() or not a.numel():
            continue
        for part, reference in zip(a.reshape(-1).split(1 << 26), b.reshape(-1).split(1 << 26), strict=True):  # type: ignore[no-untyped-call]
            error = (part.double() - reference.double()).abs().nan_to_num(0.0, 0.0, 0.0)
            squares += float(error.square().sum())
            worst = max(worst, float(error.max()))
        count += a.numel()
    return ErrorStats((squares / count) ** 0.5, worst, where) if count else None


def _race(
    fn: Callable[..., Any], call: Call, traced: Traced, forged: Callable[..., Any], shop: Workshop, bound_us: float
) -> tuple[dict[str, float], dict[str, tuple[float, float, float]], list[str]]:
    """Median microseconds by contestant, ratios of the peers to forge with intervals, and notes."""
    args, kwargs = call.args, dict(call.kwargs)
    contestants: dict[str, Callable[[int], Any]] = {
        "eager": lambda _: fn(*args, **kwargs),
        "forge": lambda _: forged(*traced.tensors),
    }
    notes: list[str] = []
    compiled = _compiled(fn, args, kwargs, notes)
    if compiled is not None:
        contestants["inductor"] = compiled
    where = torch.device(shop.device.type, shop.device.index) if shop.device.type == "cuda" else torch.device("cpu")
    clock = clock_for(where, shop.device.l2_bytes)
    wall = shop.device.type == "cuda" and bound_us < LATENCY_BOUND_US
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    order, rng, deadline = list(contestants), random.Random(shop.settings.seed), time.monotonic() + BUDGET_S
    for contestant in contestants.values():
        contestant(0)
    for done in range(ROUNDS):
        rng.shuffle(order)
        for name in order:
            one = contestants[name]
            samples[name].append(clock.wall_us(one, range(32)) if wall else clock.sample_us(one, (0,), 0)[0])
        if done >= 8 and time.monotonic() > deadline:
            break
    times = {name: median_interval(us)[0] for name, us in samples.items()}
    ratios = {name: speedup(samples[name], samples["forge"]) for name in contestants if name != "forge"}
    return times, ratios, notes


def _compiled(fn: Callable[..., Any], args: Any, kwargs: Any, notes: list[str]) -> Callable[[int], Any] | None:
    """The function under ``torch.compile``, compiled; None with a note if that fails."""
    torch._dynamo.reset()
    compiled = torch.compile(fn, dynamic=False)
    try:
        compiled(*args, **kwargs)
    except Exception as error:  # a compiler may fail in any way; then it is no peer
        notes.append(f"torch.compile failed: {type(error).__name__}")
        return None
    return lambda _: compiled(*args, **kwargs)
