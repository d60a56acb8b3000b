"""The judge's handle on one timing worker: it sends requests, holds the clock, and takes every answer for a claim."""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torch_forge.benchmarking.clock import waited_us
from torch_forge.benchmarking.commitment import digest, sampled
from torch_forge.benchmarking.session_tasks import revealed
from torch_forge.benchmarking.sides import Contender
from torch_forge.errors import WorkerError
from torch_forge.graphs.fresh import Fresh
from torch_forge.machine.files import read_untrusted
from torch_forge.machine.sessions import Reply, Session, SessionEnded
from torch_forge.machine.workers import Outcome, TaskDied, TaskExpired, WorkerPool
from torch_forge.records.codec import to_plain
from torch_forge.records.device import DeviceInfo
from torch_forge.records.outcomes import Crashed, Refused, TimedOut
from torch_forge.records.problem import Problem
from torch_forge.records.tensors import TensorSpec
from torch_forge.records.timing import Failure

TASK = "torch_forge.benchmarking.session_tasks:timing_session"
_SESSION = 10.0
"""A session may take so many times the limit of one request."""
TOUCHED = 4
"""Calls of a sample whose inputs change at the last moment and whose results are sampled within the timed request."""

_FAULTS = ("result form", "own work")
"""Gates that a worker may say its candidate failed; anything else that went wrong there is a call that failed."""

Check = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], "str | None"]
"""(inputs, results of one timed call) -> what is wrong with them, or None. Both are on the problem's device."""


class Disqualified(Exception):  # noqa: N818 -- no error: it carries a verdict
    """The candidate failed a gate of timing; never leaves this stage."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


def disqualified(gate: str, reason: str) -> Disqualified:
    """With a reason in one line."""
    return Disqualified(Refused(0, reason, gate=gate))


@dataclass(frozen=True, slots=True)
class Sample:
    """Several calls of one side in one request."""

    calls: int
    call_us: float
    """One call, as the worker says."""
    wall_us: float
    """The whole request, as the worker says, all streams waited for."""
    judge_us: float
    """The whole request, by the judge's own clock."""
    waited_us: float
    """Time that threads of the worker meanwhile were kept waiting for a core."""
    fixing_us: float | None = None
    """A second request right after it, by the judge's clock, for the digests of all results; None if there was none."""


@dataclass(frozen=True, slots=True)
class Style:
    """What is the same for every sample, decided before the candidate is loaded."""

    busy_us: float
    """How long the GPU is kept busy in front of the calls."""
    warm: bool
    """Whether a side is called once on other inputs between the flush and the calls."""


class Remote:
    """One worker. If it ends, or a side fails, every method raises Disqualified, or WorkerError where only eager runs."""

    def __init__(
        self, session: Session, problem: Problem, payload: Mapping[str, Any], *, scratch: Path, limit_s: float
    ) -> None:
        """payload: what the worker was told. limit_s: for one request."""
        self._session, self._limit_s, self._scratch = session, limit_s, scratch
        self._graph, self._device = problem.graph, torch.device(payload["device"])
        self._seed, self._shared = payload["seed"], payload["shared"]
        self._trusted = payload["contender"] is None
        self._again: Fresh | None = None

    @property
    def pid(self) -> int:
        """Of the worker's process."""
        return self._session.pid

    def probe(self) -> tuple[float, float]:
        """Microseconds of one call of eager, and of the host's part in it."""
        found = self._ask({"do": "probe"})
        return _time(found, "call_us"), _time(found, "host_us")

    def arrange(self, calls: int) -> None:
        """Room for the inputs of that many calls."""
        self._ask({"do": "arrange", "calls": calls})

    def sample(self, side: str, calls: int, style: Style, chance: random.Random) -> tuple[Sample, Results]:
        """Time a side on fresh inputs. The second value looks at the results, as long as no further sample is taken."""
        nonce, late = chance.getrandbits(60), chance.getrandbits(60)
        touched = sorted([calls - 1, *chance.sample(range(calls - 1), min(TOUCHED, calls) - 1)])
        self._ask({"do": "prepare", "side": side, "nonce": nonce, "calls": calls, "warm": style.warm})
        waited = self._waited_us()
        message = {"do": "go", "nonce": late, "touched": touched, "busy_us": style.busy_us}
        reply = self._reply(message)
        waited = max(0.0, self._waited_us() - waited)
        found = self._checked(reply.value)
        spent_us = _time(found, "spent_us")
        sample = Sample(calls, spent_us / calls, _time(found, "wall_us"), reply.seconds * 1e6, waited)
        return sample, Results(self, calls, nonce, late, touched, found.get("samples"))

    def digests(self) -> tuple[Any, float]:
        """What the worker says the results of every call of the last sample are, and the microseconds that it took."""
        reply = self._reply({"do": "commit"})
        return self._checked(reply.value).get("digests"), reply.seconds * 1e6

    def results(self, call: int) -> list[torch.Tensor]:
        """The results of one call of the last sample, on the device."""
        self._ask({"do": "reveal", "call": call})
        return [self._read(number, spec) for number, spec in enumerate(self._graph.output_specs)]

    def inputs(self, nonce: int, late: int, call: int) -> list[torch.Tensor]:
        """The inputs of a call, made again here from the seed."""
        if self._again is None:
            self._again = Fresh(self._graph, seed=self._seed, device=self._device, shared=self._shared)
        tensors = self._again.one(nonce, call)
        self._again.touch(tensors, late, call)
        return tensors

    def _read(self, number: int, spec: TensorSpec) -> torch.Tensor:
        nbytes = spec.numel * spec.itemsize
        content = read_untrusted(self._scratch / revealed(number), nbytes)
        if content is None:
            raise disqualified("timed outputs", f"there are no {nbytes} bytes of output {number} of a timed call")
        kind = getattr(torch, spec.dtype)
        flat = torch.frombuffer(content, dtype=torch.uint8).view(kind) if nbytes else torch.empty(0, dtype=kind)
        return flat.view(spec.shape).to(self._device)

    def _waited_us(self) -> float:
        return waited_us(self._session.pid) if self._device.type == "cpu" else 0.0

    def _ask(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._checked(self._reply(message).value)

    def _reply(self, message: Mapping[str, Any]) -> Reply:
        try:
            return self._session.ask(message, timeout_s=self._limit_s)
        except SessionEnded as end:
            if self._trusted:
                raise WorkerError(f"eager could not be timed: {end.outcome}") from end
            raise Disqualified(_death(end.outcome)) from end

    def _checked(self, value: Any) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise disqualified("survives", "the worker's answer is none")
        if "fault" in value:
            if self._trusted:
                raise WorkerError(f"eager could not be timed: {value['fault']}")
            gate = value.get("gate")
            raise disqualified(gate if gate in _FAULTS else "launches", f"when timed: {str(value['fault'])[:500]}")
        return value


@dataclass(slots=True)
class Results:
    """The results of a sample: all of them can be fixed, then one looked at, until the next sample is taken."""

    remote: Remote
    calls: int
    nonce: int
    late: int
    touched: Sequence[int]
    samples: Any
    """What the worker showed of them in the timed request."""
    digests: Any = None

    def fix(self) -> float:
        """Have the worker say what they are; microseconds that it took."""
        self.digests, us = self.remote.digests()
        return us

    def look(self, check: Check, call: int) -> None:
        """Compare the results of ``call``, one of ``touched``. Raises Disqualified if they are not what they have to be."""
        results = self.remote.results(call)
        if _entry(self.digests, call, self.calls) != digest(results):
            raise disqualified("timed outputs", "the result of a timed call changed after the worker had said what it is")
        if _entry(self.samples, list(self.touched).index(call), len(self.touched)) != sampled(results, self.late):
            raise disqualified("timed outputs", "the result of a timed call was not there when its time was taken")
        wrong = check(self.remote.inputs(self.nonce, self.late, call), results)
        if wrong is not None:
            raise disqualified("timed outputs", f"a timed call, on inputs never seen before, gave a wrong result: {wrong}")


def _entry(claims: Any, position: int, count: int) -> Any:
    """One of the worker's claims; None if it did not make as many as there have to be."""
    return claims[position] if isinstance(claims, list) and len(claims) == count else None


@contextmanager
def opened(
    pool: WorkerPool, problem: Problem, contender: Contender, *, device: DeviceInfo, seed: int, limit_s: float, clean: bool
) -> Iterator[Remote]:
    """A fresh worker process with eager in it and, unless it is to be clean, the contender."""
    scratch = pool.folder("timing")
    payload = {
        "problem": to_plain(problem),
        "device": f"cuda:{device.index}" if device.type == "cuda" else "cpu",
        "cache_bytes": device.l2_bytes,
        "threads": torch.get_num_threads(),
        "seed": seed,
        "shared": contender.shared_inputs,
        "contender": None if clean else {"factory": contender.factory, "payload": dict(contender.payload)},
    }
    # Confined alike, with and without the contender: a filter of system calls costs time.
    confine = pool.confinement(cuda=device.type == "cuda", compilers=contender.compilers, readable=contender.readable)
    try:
        with pool.session(TASK, payload, timeout_s=_SESSION * limit_s, scratch=scratch, confine=confine) as session:
            yield Remote(session, problem, payload, scratch=scratch, limit_s=limit_s)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _time(found: Mapping[str, Any], name: str) -> float:
    value = found.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise disqualified("clocks agree", f"the worker's {name} is no time: {str(value)[:40]}")
    return float(value)


def _death(outcome: Outcome) -> Failure:
    if isinstance(outcome, TaskExpired):
        return TimedOut(outcome.limit_s, outcome.log)
    if isinstance(outcome, TaskDied):
        return Crashed(outcome.signal, outcome.exit_status, f"{outcome.exception}\n{outcome.log}".strip())
    return Crashed(0, 0, "the worker left while it was being timed")
