"""Confirm that a candidate is faster, believing nothing that its process says about itself.

A search looks at many candidates quickly (``pairs.py``); what wins, and what somebody hands in to be judged, goes through
this: a plan made from eager's time in a process that never loads the candidate; samples in random order, each on inputs
that no call has seen, timed by the worker and from outside; secret looks at results; then the same in a second process.
"""

from __future__ import annotations

import math
import os
import random
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from torch_forge.benchmarking.clock import MOST_BUSY_US
from torch_forge.benchmarking.remote import Check, Disqualified, Remote, Results, Sample, Style, disqualified, opened
from torch_forge.benchmarking.sides import Contender
from torch_forge.benchmarking.weighing import CANDIDATE, CLEAN, EAGER, SIDES, Taken, Terms, failure_of, remarks, weigh, worse
from torch_forge.graphs.fresh import slot_bytes
from torch_forge.machine.gpu_watch import GpuWatch
from torch_forge.machine.workers import WorkerPool
from torch_forge.records.device import DeviceInfo
from torch_forge.records.problem import Graph, Problem
from torch_forge.records.timing import Confirmation, DeviceLog, Failure, TimedSession
from torch_forge.settings import Settings

GATES = ("timed outputs", "clocks agree", "fair baseline", "possible", "faster", "confirmed")
BUDGET_S = 1.2
"""Seconds of samples in one session."""
ROUNDS = (16, 60)
"""At least and at most; always even, half of them with long requests."""
SHORT_US = {"cpu": 1000.0, "cuda": 300.0}
"""What the calls of a short request take together: enough for a clock outside the process."""
MAX_CALLS = 64
_SLOT_BYTES = {"cpu": 1 << 28, "cuda": 2 << 30}
"""Inputs and results of all calls of a long request take at most this."""
_WARM_BELOW_US = 2000.0
"""Longer calls do not notice that their code is not in the caches."""
_FIXED = 3
"""In one of so many rounds, all results are fixed by digests, and the judge's clock runs on until they are."""
_LOOKS = 3
"""Rounds in which a result of the candidate is looked at, besides the last. Which ones is decided here and not told."""
_LOOKING_S = 1.0
"""When looking has taken that long, only the last is looked at."""
_HOPELESS = 20.0
"""Times eager: not worth a measurement."""
_HOPELESS_US = 2000.0
_PATIENCE = 4.0
"""Times the budget, on a busy machine; after that, the least number of rounds has to do."""
_SLOW_CLOCK, _RECOVERY_S = 0.75, 0.05
_SECOND_SEED = 7919


@dataclass(frozen=True, slots=True)
class Schedule:
    """Decided by eager's time in a clean process; no candidate has a say in it."""

    eager_us: float
    calls: int
    """K: calls of a short request."""
    rounds: int
    style: Style


def confirm(  # noqa: PLR0913 (who, where, and what is asked)
    problem: Problem,
    contender: Contender,
    *,
    device: DeviceInfo,
    pool: WorkerPool,
    settings: Settings,
    seed: int,
    check: Check | None,
    bound_us: float = 0.0,
    off: frozenset[str] = frozenset(),
    budget_s: float = BUDGET_S,
    secret: int | None = None,
) -> Confirmation:
    """The whole timing protocol on one contender; the caller holds the device's lane.

    check: is given the inputs and results of some timed calls, on the device; None leaves that part out.
    bound_us: no kernel can be faster; 0 if nothing is known. off: names of gates to leave out (``GATES``).
    budget_s: seconds of samples in each of the two sessions; up to four times that on a busy machine.
    secret: of an earlier confirmation, to repeat its contents and its order.
    Raises WorkerError if eager itself cannot be timed.
    """
    secret = secrets.randbits(60) if secret is None else secret
    limit_s = settings.trial_timeout_s
    run = _Run(
        lambda its_seed, clean: opened(pool, problem, contender, device=device, seed=its_seed, limit_s=limit_s, clean=clean),
        problem.graph,
        device,
        contender.config,
        _Wishes(check, bound_us, off, budget_s),
        random.Random(f"{seed}/{secret}"),
    )
    missing = {name: why for name, why in _missing(check, bound_us).items() if name not in off}
    sessions, failure, notes = run.sessions(seed)
    return Confirmation(
        config=contender.config,
        comparison=worse(sessions),
        sessions=tuple(sessions),
        calls=run.schedule.calls,
        planned_rounds=run.schedule.rounds,
        bound_us=bound_us,
        secret=secret,
        device=run.log(),
        met=_met(failure, off | set(missing)),
        missing=missing,
        notes=(*dict.fromkeys(notes), *run.company_note()),
        failure=failure,
    )


@dataclass(frozen=True, slots=True)
class _Wishes:
    """What the caller asked for."""

    check: Check | None
    bound_us: float
    off: frozenset[str]
    budget_s: float

    @property
    def verified(self) -> bool:
        """Whether results of timed calls are fixed and looked at."""
        return self.check is not None and "timed outputs" not in self.off


def _missing(check: Check | None, bound_us: float) -> Mapping[str, str]:
    missing = {}
    if check is None:
        missing["timed outputs"] = "nobody to compare results"
    if bound_us <= 0:
        missing["possible"] = "no bound is known"
    return missing


def _met(failure: Failure | None, without: Collection[str]) -> tuple[str, ...]:
    """The gates of timing that were applied, in order, to the one that it failed."""
    if failure is not None and failure.gate not in GATES:
        return (failure.gate,)
    last = len(GATES) if failure is None else GATES.index(failure.gate) + 1
    return tuple(name for name in GATES[:last] if name not in without)


@dataclass
class _Run:
    """One confirmation while it goes on."""

    opened: Callable[[int, bool], AbstractContextManager[Remote]]
    """(seed of the inputs, whether the contender stays outside) -> a fresh worker."""
    graph: Graph
    device: DeviceInfo
    config: int
    wishes: _Wishes
    chance: random.Random
    schedule: Schedule = field(init=False)
    slow_rounds: int = 0
    looking_s: float = 0.0
    company: int = 0
    """Compute processes of others on the GPU, at their most."""

    def __post_init__(self) -> None:
        self.watch = GpuWatch(self.device)
        self.before = self.watch.state()

    def sessions(self, seed: int) -> tuple[list[TimedSession], Failure | None, list[str]]:
        """The sessions that came to figures, the failure that ended them if one did, and remarks."""
        done: list[TimedSession] = []
        notes: list[str] = []
        bound_us, off = self.wishes.bound_us, self.wishes.off
        with self.opened(seed, True) as clean:
            self.schedule = self._schedule(clean)
            terms = Terms(self.config, self.schedule.calls, bound_us, self._results_us(), self.device.type, off)
            for second in (False, True) if "confirmed" not in off else (False,):
                try:
                    began_s = time.perf_counter()
                    session = self._session(clean, seed + second * _SECOND_SEED, terms)
                    hurried = time.perf_counter() - began_s < _PATIENCE * self.wishes.budget_s
                    if session.failure is not None and not session.quiet and hurried:  # perhaps it was others' doing
                        session = self._session(clean, seed + second * _SECOND_SEED + 1, terms)
                except Disqualified as end:
                    return done, end.failure, notes
                done.append(session)
                notes += remarks(session, bound_us)
                failure = failure_of(session, second=second)
                if failure is not None:
                    return done, failure, notes
        return done, None, notes

    def company_note(self) -> list[str]:
        """Whether others used the device."""
        return [f"{self.company} other processes use this GPU"] if self.company else []

    def log(self) -> DeviceLog:
        """Call it once, at the end."""
        after = self.watch.state()
        return DeviceLog(self.before, after, self.watch.default_sm_mhz, self.slow_rounds, self.watch.missing)

    def _results_us(self) -> float:
        """Time to read the results of a call from memory once."""
        nbytes = sum(s.numel * s.itemsize for s in self.graph.output_specs)
        return nbytes / (self.device.copy_gb_per_s * 1e3) if self.device.copy_gb_per_s else 0.0

    def _schedule(self, clean: Remote) -> Schedule:
        eager_us, host_us = clean.probe()
        calls = _short_calls(self.graph, self.device.type, eager_us, host_us)
        busy_us = min(1.3 * 2 * calls * host_us + 50.0, MOST_BUSY_US) if self.device.type == "cuda" else 0.0
        style = Style(busy_us, eager_us < _WARM_BELOW_US)
        clean.arrange(2 * calls)
        clean.sample(EAGER, 2 * calls, style, self.chance)
        begin = time.perf_counter()
        for number in (calls, 2 * calls):
            clean.sample(EAGER, number, style, self.chance)
        round_s = (time.perf_counter() - begin) / 2 * 4
        least, most = ROUNDS
        return Schedule(
            eager_us, calls, 2 * max(least // 2, min(most // 2, round(self.wishes.budget_s / round_s / 2))), style
        )

    def _session(self, clean: Remote, seed: int, terms: Terms) -> TimedSession:
        """One fresh process. Raises Disqualified if it does not come to figures."""
        with self.opened(seed, False) as beside:
            beside.arrange(2 * self.schedule.calls)
            self._warm_up(beside)
            self.company = max(self.company, self.watch.others({os.getpid(), clean.pid, beside.pid}))
            rounds, checked = self._rounds(clean, beside)
        return weigh(rounds, terms, seed=seed, checked=checked)

    def _warm_up(self, beside: Remote) -> None:
        """First calls, which may compile or load something, and a look at whether there is any hope."""
        style = self.schedule.style
        for _ in range(2):
            sample, _ = beside.sample(CANDIDATE, 1, style, self.chance)
        if sample.call_us > max(_HOPELESS * self.schedule.eager_us, _HOPELESS_US) and "faster" not in self.wishes.off:
            raise disqualified("faster", f"a call took {sample.call_us:.0f} us, eager takes {self.schedule.eager_us:.0f} us")
        for calls in (self.schedule.calls, 2 * self.schedule.calls):
            for side in (EAGER, CANDIDATE):
                beside.sample(side, calls, style, self.chance)

    def _rounds(self, clean: Remote, beside: Remote) -> tuple[list[Taken], int]:
        """All rounds, and how many results were looked at."""
        calls, count = self.schedule.calls, self.schedule.rounds
        plan = [calls, 2 * calls] * (count // 2)
        self.chance.shuffle(plan)
        looks = set(self.chance.sample(range(count - 1), _LOOKS))
        fixed = looks | set(self.chance.sample(range(count), count // _FIXED))
        taken: list[Taken] = []
        checked, spare = 0, count // 2
        self.looking_s = 0.0
        deadline = time.perf_counter() + _PATIENCE * self.wishes.budget_s
        while True:
            number, late = len(taken), time.perf_counter() > deadline
            last = number == count - 1 or (late and number >= ROUNDS[0] - 1)
            samples: dict[str, Sample] = {}
            for side in self.chance.sample(SIDES, len(SIDES)):
                remote, name = (clean, EAGER) if side == CLEAN else (beside, CANDIDATE if side == CANDIDATE else EAGER)
                samples[side], results = remote.sample(name, plan[number], self.schedule.style, self.chance)
                if self.wishes.verified and side != CLEAN and (last or number in fixed):
                    samples[side] = replace(samples[side], fixing_us=results.fix())
                    if side == CANDIDATE and (last or number in looks):
                        checked += self._look(results, must=last)
            if spare > 0 and self._clocked_down():
                spare -= 1
                continue
            taken.append(Taken(plan[number], samples))
            if last:
                return taken, checked

    def _look(self, results: Results, *, must: bool) -> bool:
        """Whether it was looked at."""
        assert self.wishes.check is not None
        if self.looking_s > _LOOKING_S and not must:
            return False
        begin = time.perf_counter()
        results.look(self.wishes.check, self.chance.choice(results.touched))
        self.looking_s += time.perf_counter() - begin
        return True

    def _clocked_down(self) -> bool:
        """Whether the GPU runs far below its clock; if so, it was given a moment."""
        mhz = self.watch.sm_mhz()
        if not 0 < mhz < _SLOW_CLOCK * self.watch.default_sm_mhz:
            return False
        self.slow_rounds += 1
        time.sleep(_RECOVERY_S)
        return True


def _short_calls(graph: Graph, kind: str, eager_us: float, host_us: float) -> int:
    """Calls of a short request: long enough to be seen from outside, short enough to fit into memory and behind the spin."""
    wanted = math.ceil(SHORT_US[kind] / max(eager_us, 0.1))
    nbytes = slot_bytes(graph) + sum(s.numel * s.itemsize for s in graph.output_specs)
    hidden = int(MOST_BUSY_US / (2.6 * max(host_us, 0.1))) if kind == "cuda" else MAX_CALLS
    return max(1, min(wanted, MAX_CALLS, hidden, _SLOT_BYTES[kind] // (2 * nbytes)))
