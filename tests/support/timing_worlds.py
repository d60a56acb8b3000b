"""Timing workers that exist on paper: they answer the judge's requests with made-up times and, where asked, real results."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

from torch_forge.benchmarking.commitment import as_bytes, digest, sampled
from torch_forge.benchmarking.session_tasks import revealed
from torch_forge.graphs.execute import callable_for
from torch_forge.graphs.fresh import Fresh
from torch_forge.machine.sessions import Reply
from torch_forge.records.codec import from_plain
from torch_forge.records.problem import Problem

CPU = torch.device("cpu")


@dataclass
class World:
    """How long things take, and what the worker says of it. All times in microseconds of one call."""

    eager_us: float = 100.0
    candidate_us: float | tuple[float, ...] = 50.0
    """One for all processes, or one for each in turn."""
    clean_us: float | None = None
    """Eager without a candidate beside it; as beside one if None."""
    noise: float = 0.03
    """Standard deviation of the logarithm of a sample's time."""
    request_us: float = 150.0
    """What a request costs besides the calls, with a standard deviation of a tenth of that."""
    tell: Callable[[str, float, int], float] = lambda side, spent_us, calls: spent_us
    """(side, true time of all calls, number of calls) -> what the worker says."""
    late_us: float = 0.0
    """Work of one call of the candidate that is done only when its results are asked for."""
    shown: Callable[[str], str] = lambda sample: sample
    """What is shown of a result in the timed request, given what would be right."""
    results: bool = False
    """Whether there are results at all."""
    compute: Callable[[Callable[..., Any], list[torch.Tensor], list[torch.Tensor]], Any] = lambda eager, inputs, old: eager(
        *inputs
    )
    """(eager, inputs, inputs as they were before the last change) -> results of a call."""
    after: Callable[[list[torch.Tensor]], None] = lambda results: None
    """What becomes of results after their digests were taken."""
    seed: int = 0
    answers: dict[str, Any] = field(default_factory=dict)
    """Request -> an answer instead of the honest one, for candidates' workers."""

    log: list[tuple[str, bool, int, int, tuple[int, ...]]] = field(default_factory=list)
    """Every sample: side, whether in the clean process, nonce, calls, calls that were touched."""

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.opened = 0

    def confinement(self, **_: Any) -> None:
        """In place of ``WorkerPool.confinement``: nothing runs here."""

    def folder(self, kind: str) -> Path:
        """In place of ``WorkerPool.folder``."""
        return Path(tempfile.mkdtemp(prefix=f"torch_forge-test-{kind}-"))

    def session(self, task: str, payload: Mapping[str, Any], *, timeout_s: float, scratch: Path, **_: Any) -> Simulated:
        """In place of ``WorkerPool.session``."""
        self.opened += payload["contender"] is not None
        return Simulated(self, payload, scratch)


class Simulated:
    """One session."""

    pid = 0  # no process: nothing is known of how long it waited

    def __init__(self, world: World, payload: Mapping[str, Any], scratch: Path) -> None:
        self.world, self.scratch, self.clean = world, scratch, payload["contender"] is None
        if world.results:
            problem: Problem = from_plain(Problem, payload["problem"])
            self.graph = problem.graph
            self.fresh = Fresh(problem.graph, seed=payload["seed"], device=CPU)
        self.outputs: list[Any] = []
        times = world.candidate_us if isinstance(world.candidate_us, tuple) else (world.candidate_us,)
        self.candidate_us = times[min(world.opened, len(times)) - 1]

    def __enter__(self):
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def ask(self, message: Mapping[str, Any], *, timeout_s: float) -> Reply:
        todo = {k: v for k, v in message.items() if k != "do"}
        value, us = getattr(self, message["do"])(**todo)
        if not self.clean and message["do"] in self.world.answers:
            value = self.world.answers[message["do"]]
        return Reply(value, max(1.0, us + self.world.request_us * (1 + 0.1 * self.world.rng.normal())) / 1e6)

    def probe(self) -> tuple[Any, float]:
        return {"call_us": self.world.eager_us, "host_us": 5.0}, 0.0

    def arrange(self, calls: int) -> tuple[Any, float]:
        return {}, 0.0

    def prepare(self, side: str, nonce: int, calls: int, warm: bool) -> tuple[Any, float]:
        self.side, self.nonce, self.calls = side, nonce, calls
        return {}, 0.0

    def go(self, nonce: int, touched: list[int], busy_us: float) -> tuple[Any, float]:
        world = self.world
        us = world.eager_us if self.side == "eager" else self.candidate_us
        if self.clean and world.clean_us is not None:
            us = world.clean_us
        spent_us = us * self.calls * float(np.exp(world.noise * world.rng.normal()))
        told_us = spent_us if self.clean else world.tell(self.side, spent_us, self.calls)
        self.outputs = []
        if world.results and self.side == "candidate":
            self.outputs = [self._computed(k, nonce, k in touched) for k in range(self.calls)]
        samples = [world.shown(sampled(self.outputs[k], nonce)) for k in touched] if self.outputs else []
        world.log.append((self.side, self.clean, self.nonce, self.calls, tuple(touched)))
        return {"spent_us": told_us, "wall_us": spent_us + 10.0, "samples": samples}, spent_us

    def commit(self) -> tuple[Any, float]:
        us = self.world.late_us * self.calls if self.side == "candidate" else 0.0
        digests = [digest(o) for o in self.outputs]
        for o in self.outputs:
            self.world.after(o)
        return {"digests": digests}, us

    def reveal(self, call: int) -> tuple[Any, float]:
        for number, output in enumerate(self.outputs[call]):
            as_bytes(output).numpy().tofile(self.scratch / revealed(number))
        return {}, 0.0

    def _computed(self, call: int, late: int, touched: bool) -> list[torch.Tensor]:
        inputs = self.fresh.one(self.nonce, call)
        old = [x.clone() for x in inputs]
        if touched:
            self.fresh.touch(inputs, late, call)
        return list(self.world.compute(callable_for(self.graph), inputs, old))
