#!/usr/bin/env python3
"""Kill one tuning run again and again, and see whether anything is lost: ``kills.py [--kills N] [--seed S]``.

A few tiny problems are tuned, first by a run that is left alone; then by one that is killed at random moments, with SIGKILL,
SIGTERM or SIGHUP, and started again until it has decided everything; then with an empty cache again, until there were enough
kills. After every kill: no process and no folder of the run is left, every entry of the cache is sound, the journals hold
what they held, and nothing that they knew to fail was tried again. Whenever everything is decided: the same kernels are
stored as by the run that was left alone, and in the end they are all right. Which candidate is fastest is made up, a
function of its source, so that no clock decides who wins; all else is as always.

Prints one JSON object; exit status 1 if ``problems`` in it is not empty.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from torch_forge.benchmarking.confirm import confirm
from torch_forge.benchmarking.pairs import Bench, Measured
from torch_forge.caching import upkeep
from torch_forge.caching.entry import Bad, StoredEntry
from torch_forge.caching.journal import JOURNALS, Journal
from torch_forge.caching.staging import STAGING
from torch_forge.caching.store import DirectoryStore
from torch_forge.compilation.build import Outcome, build_many
from torch_forge.generation.templates.engine import candidates
from torch_forge.graphs.capture import graph_from_fx, trace_specs
from torch_forge.graphs.lower import lower
from torch_forge.records.entry import CacheEntry
from torch_forge.records.kernels import Built, Candidate
from torch_forge.records.outcomes import Comparison, Passed, Timing, Trial
from torch_forge.records.problem import Policy, Problem
from torch_forge.records.program import Lowered
from torch_forge.records.tensors import contiguous
from torch_forge.search import trials
from torch_forge.search.case import Case
from torch_forge.search.forge import forge_problem
from torch_forge.search.workshop import Deadline, Workshop
from torch_forge.settings import Settings
from torch_forge.validation.judge import Judge
from torch_forge.validation.sanitize import SanitizerReport

PR_SET_CHILD_SUBREAPER = 36
GONE_S = 30.0
"""How long processes and folders of a killed run may take to go."""
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)
LOOK_S = 0.1
"""Seconds of timing: what the clock says is thrown away."""
INSTEAD = """
#define forge_launch original_launch
{source}
#undef forge_launch
{entry} {{ {body} }}
"""
FLAWS = ("#error never", "return FORGE_OK;", "*(volatile int*)0 = 1; return FORGE_OK;")
"""Of the candidates that have to fail: one does not compile, one writes nothing, one crashes."""
ENTRY = (
    'extern "C" int forge_launch(const ForgeTensor* in, const ForgeTensor* out, const int64_t* dims, int64_t config, '
    "int64_t threads, void* workspace, void* stream)"
)


@dataclass
class Report:
    """What happened."""

    kills: list[dict[str, Any]] = field(default_factory=list)
    """Of runs that would have gone on."""
    finished: int = 0
    """Times that everything was decided in spite of them."""
    problems: list[str] = field(default_factory=list)
    alone_s: float = 0.0
    """Of the run that was left alone."""
    stored: int = 0


def problems(count: int) -> list[Problem]:
    """Tiny workloads, each with a template."""
    functions = (
        (lambda x: torch.softmax(x * 2, -1), [(16, 96)]),
        (lambda x, y: torch.tanh(x) * y + 1, [(32, 40), (32, 40)]),
        (lambda x, w: w * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6), [(8, 64), (64,)]),
    )
    made = []
    for number, (function, shapes) in enumerate(functions[:count]):
        graph = graph_from_fx(trace_specs(function, [contiguous(shape, "float32") for shape in shapes]))
        made.append(Problem(f"tiny{number}", graph, Policy.EAGER_EQUIVALENT))
    return made


def tune(settings: Settings, count: int, tried: Path, *, brief: bool) -> None:
    """The run that is killed: decide about every problem."""
    with fixed_clock(brief), noted(tried), Workshop.open("cpu", settings) as shop:
        for problem in problems(count):
            forge_problem(problem, lower(problem), shop, deadline=Deadline.after(600), against_inductor=False)


@contextlib.contextmanager
def fixed_clock(brief: bool) -> Iterator[None]:
    """Timing takes place, and then the figures are a function of the source: any right kernel wins, always the same one.

    brief: leave the last looks at a winner out, its sanitizers and the timing protocol.
    """
    timed, looked_at_again = Bench.compare, trials._measured_again

    def compare(self: Bench, built: Built, dims: Sequence[int], configs: Sequence[int], **options: Any) -> Measured:
        found = timed(self, built, dims, configs, **{**options, "budget_s": LOOK_S})
        right = [config for config in configs if config not in found.faults]
        return Measured(tuple(figures(built, config) for config in right), found.faults)

    def measured_again(case: Case, judge: Judge, best: Trial) -> Trial:
        if brief:
            return best
        return replace(looked_at_again(case, judge, best), comparisons=best.comparisons, not_faster=None)

    def sanitized(self: Judge, built: Built, config: int, **options: Any) -> SanitizerReport:
        return SanitizerReport((), {}, None, 0.0) if brief else look(self, built, config, **options)

    look, quickly = Judge.sanitized, functools.partial(confirm, budget_s=LOOK_S)
    changes = {"Bench.compare": compare, "_measured_again": measured_again, "confirm": quickly, "Judge.sanitized": sanitized}
    with contextlib.ExitStack() as stack:
        for name, change in changes.items():
            stack.enter_context(mock.patch(f"torch_forge.search.trials.{name}", change))
        yield


def figures(built: Built, config: int) -> Comparison:
    """Far slower than any target, so that no candidate ends the search, and faster than eager."""
    us = 1e3 + int(built.candidate.digest[:6], 16) / 1e3 + config
    mine, eager = Timing(us, us, us, 9), Timing(1e6, 1e6, 1e6, 9)
    return Comparison(config, mine, eager, 1e6 / us, 1e6 / us, 1e6 / us)


@contextlib.contextmanager
def noted(tried: Path) -> Iterator[None]:
    """Candidates that have to fail come first; what is built is written down."""

    def with_flaws(problem: Problem, lowered: Lowered, *arguments: Any, **options: Any) -> list[Candidate]:
        right = candidates(problem, lowered, *arguments, **options)[:2]
        texts = [INSTEAD.format(source=right[0].source, entry=ENTRY, body=f"\n{body}\n") for body in FLAWS]
        return [*(replace(right[0], source=text) for text in texts), *right]

    def building(proposed: Sequence[Candidate], *arguments: Any, **options: Any) -> Iterator[tuple[Candidate, Outcome]]:
        with tried.open("a") as file:
            file.writelines(f"{c.digest}\n" for c in proposed)
        return build_many(proposed, *arguments, **options)

    where = "torch_forge.search.trials"
    with mock.patch(f"{where}.candidates", with_flaws), mock.patch(f"{where}.build_many", building):
        yield


class Arena:
    """One cache, one temporary directory, and runs in them, one after the other."""

    def __init__(self, root: Path, count: int, *, brief: bool) -> None:
        self.brief = brief
        self.cache, self.temporary, self.tried, self.count = root / "cache", root / "tmp", root / "tried", count
        self.log = root / "log"
        self.temporary.mkdir(parents=True)
        self.settings = Settings.resolve({}, cache_dir=self.cache, peers="eager", budget_s=600.0, march="native")

    def run(self, kill_after_s: float | None = None, how: int = signal.SIGKILL) -> int:
        """Tune in a process of its own, killed after so many seconds; its status, as in ``subprocess``."""
        pid = os.fork()
        if pid == 0:
            self._child()
        deadline = time.monotonic() + (600.0 if kill_after_s is None else kill_after_s)
        while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
            if time.monotonic() >= deadline:
                os.kill(pid, how)
                ended = os.waitpid(pid, 0)
                break
            time.sleep(0.005)
        return os.waitstatus_to_exitcode(ended[1])

    def _child(self) -> None:
        status = 1
        try:
            os.setsid()
            for number in SIGNALS:
                if number != signal.SIGKILL:
                    signal.signal(number, signal.SIG_DFL)  # nohup ignores one of them
            descriptor = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            os.environ["TMPDIR"], tempfile.tempdir = str(self.temporary), None
            logging.basicConfig()
            tune(self.settings, self.count, self.tried, brief=self.brief)
            status = 0
        except BaseException:  # process boundary: into the log
            traceback.print_exc()
        finally:
            os._exit(status)

    def left(self) -> list[str]:
        """Processes and folders with files of runs that have ended, once they had time to go."""
        deadline = time.monotonic() + GONE_S
        while (left := [*orphans(), *self._folders()]) and time.monotonic() < deadline:
            time.sleep(0.02)
        return left

    def _folders(self) -> list[str]:
        """What a run leaves that is killed before its workers have started goes with the next run."""
        return [p.name for p in self._own() if not of_a_start(p)]

    def swept(self) -> list[str]:
        """Folders that are left in spite of a next run."""
        return [p.name for p in self._own()]

    def _own(self) -> list[Path]:
        """What is ours and not there to stay, as the lanes' locks are."""
        return [p for p in self.temporary.glob("torch_forge-*") if not p.name.startswith("torch_forge-lanes")]

    def damaged(self) -> list[str]:
        store = DirectoryStore(self.cache)
        return [f"{d.name}: {getattr(d.entry, 'reason', '')}" for d in upkeep.verify(store, quarantine=False)[0]]

    def decided(self) -> dict[str, str]:
        """Workload -> what is stored: the kernel's source and config, or that eager stays."""
        found = {}
        for located in upkeep.walk(DirectoryStore(self.cache)):
            entry = located.entry
            if isinstance(entry, CacheEntry):
                found[entry.workload] = f"{entry.files['kernel.cpp'].sha256} config {entry.binding.config}"
            elif not isinstance(entry, Bad):
                found[entry.workload] = f"eager: {entry.result.why}"
        return found

    def failed(self) -> dict[str, set[str]]:
        """Name of a journal -> candidates in it."""
        return {p.name: set(Journal(p).finished) for p in (self.cache / JOURNALS).glob("*/*.jsonl")}

    def forget(self) -> None:
        """Begin again with nothing."""
        shutil.rmtree(self.cache)

    def built(self) -> list[str]:
        """Digests of what was handed to the compiler, in order."""
        return self.tried.read_text().split() if self.tried.exists() else []


def of_a_start(folder: Path) -> bool:
    """Whether there is nothing but the file of a compiler's trial, the workers' empty log and empty folders."""
    files = [Path(inside, name) for inside, _, names in os.walk(folder) for name in names]
    with contextlib.suppress(FileNotFoundError):  # it is just being removed: look again
        return all(p.name.startswith("check.") or p.stat().st_size == 0 for p in files)
    return False


def orphans() -> list[str]:
    """Processes that runs have left, which are children of this one now; those that have ended are collected."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    pids = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [f"process {pid}: {command_of(pid)}" for pid in pids]


def command_of(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
    except OSError:
        return ""


def kill_again_and_again(alone: Arena, killed: Arena, report: Report, kills: int, longest_s: float, seed: int) -> None:
    """Runs that are killed or come to their end, and what has to hold after each; the last one is left alone."""
    rng, journals, number, status = random.Random(seed), dict[str, set[str]](), 0, -1
    while len(report.kills) < kills or status != 0:
        after_s, how = rng.uniform(0, longest_s), rng.choice(SIGNALS)
        before = len(killed.built())
        status = killed.run(after_s, how) if len(report.kills) < kills else killed.run()
        problems = after_a_run(killed, journals, set(killed.built()[before:]))
        problems += [] if status in {0, -how} else [f"ended with status {status}: {killed.log.read_text()[-2000:]}"]
        journals = killed.failed()
        if status == 0:
            problems += compare(alone, killed)
            report.finished += 1
            if len(report.kills) < kills:
                killed.forget()
                journals = {}
        else:
            known = sum(len(those) for those in journals.values())
            about = {"after_s": round(after_s, 2), "signal": -status}
            report.kills.append({**about, "decided": len(killed.decided()), "failed": known})
        report.problems += [f"run {number}: {problem}" for problem in problems]
        number += 1
        print(f"run {number}: status {status}, {len(report.kills)} kills", file=sys.stderr, flush=True)
        if problems:
            return


def after_a_run(arena: Arena, journals: dict[str, set[str]], built: set[str]) -> list[str]:
    """What must not be. journals: before the run. built: by the run."""
    now, decided = arena.failed(), arena.decided()
    lost = [
        f"lost from the journal {name}: {digest}"
        for name, digests in journals.items()
        if not any(workload in name for workload in decided)
        for digest in digests - now.get(name, set())
    ]
    again = [f"tried again: {digest}" for digest in built & {d for digests in journals.values() for d in digests}]
    return [*arena.left(), *arena.damaged(), *lost, *again]


def wrong_kernels(arena: Arena) -> list[str]:
    """Stored kernels that are not right, judged once more."""
    of = {p.workload: p for p in problems(arena.count)}
    store, wrong = DirectoryStore(arena.cache), []
    with Workshop.open("cpu", arena.settings) as shop:
        for located in upkeep.walk(store):
            stored = store.check(Path(located.directory))
            if not isinstance(stored, StoredEntry):
                continue
            problem = of[stored.entry.workload]
            lowered = lower(problem)
            candidate = stored.entry.kernel.candidate(problem.digest, stored.kernel_source.read_text())
            built = Built(candidate, str(stored.kernel_library), stored.entry.files["kernel.so"].sha256, 0.0, {})
            judge = Judge(
                problem,
                lowered=lowered if isinstance(lowered, Lowered) else None,
                device=shop.device,
                pool=shop.pool,
                settings=arena.settings,
                seed=1,
            )
            verdict = judge.check(built, stored.entry.binding.config)
            if not isinstance(verdict, Passed):
                wrong.append(f"{located.name}: {verdict}")
    return wrong


def compare(alone: Arena, killed: Arena) -> list[str]:
    """What the killed run has not done that the other one has."""
    found = []
    if alone.decided() != killed.decided():
        found.append(f"other decisions: {killed.decided()} instead of {alone.decided()}")
    if len(alone.decided()) != alone.count:
        found.append(f"{len(alone.decided())} decisions of {alone.count}")
    for arena in (alone, killed):
        found += [
            *arena.left(),
            *arena.swept(),
            *arena.damaged(),
            *(f"a journal is left: {name}" for name in arena.failed()),
        ]
        found += [f"staging is left: {p.name}" for p in (arena.cache / STAGING).iterdir()]
    return found


def main() -> int:
    """Run, print, return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--problems", type=int, default=3, choices=(1, 2, 3))
    parser.add_argument(
        "--longest", type=float, metavar="S", help="latest moment of a kill (default: as long as a run takes)"
    )
    parser.add_argument("--brief", action="store_true", help="without sanitizers and timing protocol; kills come early")
    arguments = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    report = Report()
    with tempfile.TemporaryDirectory(prefix="torch_forge-kills-") as folder:
        alone, killed = (
            Arena(Path(folder, name), arguments.problems, brief=arguments.brief) for name in ("alone", "killed")
        )
        began_s = time.monotonic()
        if alone.run():
            raise RuntimeError(f"the run that was left alone failed:\n{alone.log.read_text()}")
        report.alone_s = round(time.monotonic() - began_s, 1)
        longest_s = arguments.longest or report.alone_s / (3 if arguments.brief else 1)
        kill_again_and_again(alone, killed, report, arguments.kills, longest_s, arguments.seed)
        report.problems += wrong_kernels(killed)
        report.stored = len(killed.decided())
    print(json.dumps(report.__dict__, indent=1))
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
