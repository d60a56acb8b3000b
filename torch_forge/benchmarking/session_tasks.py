"""The worker's half of a confirmation: it does what each request says, and plans, counts and remembers nothing.

A sample takes two requests. ``prepare`` writes inputs that no call has seen, flushes the caches and calls the side once on
other inputs; the judge's clock runs around ``go``, which changes a few elements more, makes the timed calls and hands over
a few elements of their results. For a candidate, ``commit`` then fixes all results by digests and ``reveal`` hands one over.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from torch_forge.benchmarking.clock import Clock, clock_for
from torch_forge.benchmarking.commitment import as_bytes, digest, sampled
from torch_forge.benchmarking.sides import Outputs, Side, Station, eager_side, made
from torch_forge.graphs.fresh import Fresh
from torch_forge.graphs.subjects import Unfit
from torch_forge.machine.sandbox.lock import lock_down
from torch_forge.records.codec import from_plain
from torch_forge.records.problem import Problem

_PROBES = 5
_PROBE_BUSY_US = 1000.0
_WARM_NONCE = 0
_now_ns = time.perf_counter_ns


class Dialogue(Protocol):
    """Requests, one after the other; each is answered before the next is taken."""

    def __iter__(self) -> Iterator[Any]: ...

    def reply(self, value: Any) -> None: ...


def timing_session(payload: Mapping[str, Any], scratch: Path, dialogue: Dialogue) -> dict[str, Any]:
    """Answer until there are no more requests.

    payload: ``problem``, ``device``, ``cache_bytes``, ``threads``, ``seed``, ``shared`` (leading inputs that all calls of a
    request share) and ``contender`` (``factory`` and ``payload`` of a ``sides.Contender``; None where only eager is to run).
    """
    torch.set_num_threads(payload["threads"])
    gc.disable()  # no pause of the collector in somebody's sample
    device = torch.device(payload["device"])
    with _own_stream(device) as stream, torch.no_grad():
        bench = _Bench(payload, device, stream, scratch)
        for request in dialogue:
            dialogue.reply(bench.answer(request))
    return {}


@contextmanager
def _own_stream(device: torch.device) -> Iterator[int]:
    """Address of a stream that is current on the device; 0 on the CPU."""
    if device.type != "cuda":
        yield 0
        return
    torch.cuda.set_device(device)
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        yield stream.cuda_stream
        torch.cuda.synchronize(device)


class _Bench:
    """Sides, inputs and clock; between two requests it holds one prepared or finished sample."""

    def __init__(self, payload: Mapping[str, Any], device: torch.device, stream: int, scratch: Path) -> None:
        problem: Problem = from_plain(Problem, payload["problem"])
        self._specs, self._device, self._scratch = problem.graph.output_specs, device, scratch
        self._clock: Clock = clock_for(device, payload["cache_bytes"])
        self._fresh = Fresh(problem.graph, seed=payload["seed"], device=device, shared=payload["shared"])
        self._warm = self._fresh.one(_WARM_NONCE, 0)
        self._inputs: list[list[torch.Tensor]] = []
        self._calls: list[Callable[[], Outputs]] = []
        self._results: list[Outputs] = []
        self._sides: dict[str, Side] = {"eager": eager_side(problem.graph)}
        lock_down()  # CUDA is in use by now, where it will be; eager alone runs under the same conditions
        if payload["contender"] is not None:
            station = Station(problem.graph, device, stream, payload["threads"])
            self._sides["candidate"] = made(station, **payload["contender"])

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """What came of a request: ``fault`` says that a side raised or returned something else than results."""
        todo = {k: v for k, v in request.items() if k != "do"}
        actions: dict[str, Callable[..., dict[str, Any]]] = {
            "probe": self.probe,
            "arrange": self.arrange,
            "prepare": self.prepare,
            "go": self.go,
            "commit": self.commit,
            "reveal": self.reveal,
        }
        try:
            return actions[request["do"]](**todo)
        except Unfit as error:
            return {"fault": error.reason, "gate": error.gate}
        except Exception as error:  # a candidate may raise anything, and the judge is to know
            return {"fault": f"{type(error).__name__}: {error}".splitlines()[0]}

    def probe(self) -> dict[str, Any]:
        """Time of one call of eager, and of the host's part in it, in microseconds."""
        calls = [self._sides["eager"](self._warm)] * 2
        times, hosts = [], []
        for _ in range(_PROBES):
            begin = _now_ns()
            _, spent_us = self._clock.start(calls, _PROBE_BUSY_US)
            hosts.append((_now_ns() - begin) / 1e3 / len(calls))
            times.append(spent_us() / len(calls))
        return {"call_us": min(times), "host_us": min(hosts)}

    def arrange(self, calls: int) -> dict[str, Any]:
        """Make room for the inputs of so many calls."""
        self._fresh.reserve(calls)
        return {}

    def prepare(self, side: str, nonce: int, calls: int, warm: bool) -> dict[str, Any]:
        """Fresh inputs for so many calls of a side, caches flushed; ``warm``: its code is put back into them."""
        self._results = []
        self._inputs = self._fresh.inputs(nonce, calls)
        chosen = self._sides[side]
        warming = chosen(self._warm)  # before the others: a module's parameters are those that were bound last
        self._calls = [chosen(tensors) for tensors in self._inputs]
        self._clock.flush()
        if warm:
            warming()
        self._clock.wait()
        return {}

    def go(self, nonce: int, touched: Sequence[int], busy_us: float) -> dict[str, Any]:
        """The timed calls; ``touched``: calls whose inputs are changed once more and whose results are sampled.

        Returns ``spent_us`` of all calls, ``wall_us`` until all was done, and ``samples``, one for each of ``touched``.
        """
        for k in touched:
            self._fresh.touch(self._inputs[k], nonce, k)
        begin = _now_ns()
        results, spent_us = self._clock.start(self._calls, busy_us)
        for k in touched:
            self._in_form(results[k])
        # In the stream's order and before it is waited for: what another stream has not finished is not there yet.
        samples = [sampled(results[k], nonce) for k in touched]
        self._results = results
        spent = spent_us()
        return {"spent_us": spent, "wall_us": (_now_ns() - begin) / 1e3, "samples": samples}

    def commit(self) -> dict[str, Any]:
        """``digests`` of the results of every call."""
        for outputs in self._results:
            self._in_form(outputs)
        return {"digests": [digest(outputs) for outputs in self._results]}

    def reveal(self, call: int) -> dict[str, Any]:
        """Leave the results of one call in ``scratch``."""
        for number, output in enumerate(self._results[call]):
            as_bytes(output).cpu().numpy().tofile(self._scratch / revealed(number))
        return {}

    def _in_form(self, outputs: Any) -> None:
        """Raises Unfit unless they are plain tensors of eager's shapes and types: anything else might compute when read."""
        if not isinstance(outputs, (tuple, list)) or len(outputs) != len(self._specs):
            raise Unfit("result form", f"it did not return {len(self._specs)} tensors")
        for number, (output, spec) in enumerate(zip(outputs, self._specs, strict=True)):
            if type(output) is not torch.Tensor:
                raise Unfit("result form", f"result {number} is a {type(output).__name__}, not a plain tensor")
            form = (tuple(output.shape), output.dtype, output.device.type)
            if form != (spec.shape, getattr(torch, spec.dtype), self._device.type):
                raise Unfit("result form", f"result {number} has not eager's shape, type and device")


def revealed(number: int) -> str:
    """Name of the file in which one output of a call is handed over."""
    return f"revealed-{number}.bin"
