#!/usr/bin/env python3
"""Judge a thousand candidates in one process and see whether anything grows: ``soak.py [--candidates N] [--json FILE]``.

Small C++ kernels, right and wrong ones, some that crash, refuse or do not compile, each with the verdict that it must have.
Every so often memory, descriptors, processes and files are counted; a line fitted to the second half of each series may not
rise by more than its bound. Prints a summary; exit status 1 if something grew or a verdict was another one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torch_forge.compilation.build import build, build_many
from torch_forge.compilation.jobs import build_jobs
from torch_forge.graphs.capture import graph_from_fx, trace_specs
from torch_forge.machine.toolchain import Toolchain
from torch_forge.records.kernels import BuildFailed, Built, Candidate, Config, Origin
from torch_forge.records.problem import Policy, Problem
from torch_forge.records.tensors import contiguous
from torch_forge.search.workshop import Workshop
from torch_forge.settings import Settings
from torch_forge.validation.judge import Judge

KERNEL = """
#include "forge.h"
extern "C" int forge_launch(const ForgeTensor* in, const ForgeTensor* out, const int64_t* dims, int64_t config,
                            int64_t threads, void* workspace, void* stream) {
  const float* x = (const float*)in[0].data;
  float* y = (float*)out[0].data;
  const int64_t n = dims[0] * dims[1];
  BODY
  return FORGE_OK;
}
extern "C" const int forge_soak_number = NUMBER;
"""
LOOP = "for (int64_t i = 0; i < n; ++i) y[i] = x[i] > 0 ? x[i] : x[i] * 0.125f;"
BODIES = {
    "Passed": LOOP,
    "Mismatch": LOOP.replace("0.125f", "0.126f"),
    "Crashed": f"{LOOP} *(volatile int*)1 = 0;",
    "Refused": "return FORGE_UNSUPPORTED;",
    "Mismatch, tail": LOOP.replace("i < n", "i < n - 1"),
    "Refused, outside": f"{LOOP} y[n] = 1;",
    "Crashed, aborts": "__builtin_trap();",
}
"""Verdict, and a word where there are several such kernels -> what ``forge_launch`` does."""
NO_CODE = "return undeclared[NUMBER];"
FAILED_SHARE = 10
"""One candidate in so many does not compile."""
WARM_UP = 50
"""Candidates before the first sample: allocators and caches of modules fill."""
BOUNDS: dict[str, float] = {
    "main_rss_bytes": 16 << 20,
    "parents_rss_bytes": 8 << 20,
    "main_descriptors": 1,
    "parents_descriptors": 1,
    "processes": 0.5,
    "threads": 0.5,
    "files": 0.5,
}
"""Series -> how much its fitted line may rise over the second half of the run."""


@dataclass(frozen=True)
class Sample:
    """What one look found."""

    candidates: int
    main_rss_bytes: int
    parents_rss_bytes: int
    """Of the process that forks the workers, and of its gate."""
    main_descriptors: int
    parents_descriptors: int
    processes: int
    """Below this one."""
    threads: int
    """Of this one."""
    files: int
    """And folders, in the directory for temporary files."""


@dataclass
class Report:
    """The whole run."""

    candidates: int
    date: str
    device: str
    torch: str
    python: str
    kernels: int = 0
    verdicts: dict[str, int] = field(default_factory=dict)
    surprises: list[str] = field(default_factory=list)
    """Verdicts that were others than they had to be."""
    rises: dict[str, float] = field(default_factory=dict)
    """Series -> rise of its line over the second half, in its own unit."""
    grew: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    seconds: float = 0.0


def leaky() -> Problem:
    """A small workload."""
    function: Callable[..., Any] = lambda x: torch.where(x > 0, x, x * 0.125)  # noqa: E731
    return Problem(
        "leaky", graph_from_fx(trace_specs(function, [contiguous((64, 256), "float32")])), Policy.EAGER_EQUIVALENT
    )


def candidate(problem: Problem, body: str, number: int) -> Candidate:
    source = KERNEL.replace("BODY", body).replace("NUMBER", str(number))
    return Candidate(problem.digest, problem.name, "cpu", source, Origin.USER, "soak", (Config({}, 4),))


def look(done: int, temporary: Path) -> Sample:
    """Count everything, once what has been killed had time to go."""
    time.sleep(0.3)
    below = descendants(os.getpid())
    return Sample(
        candidates=done,
        main_rss_bytes=rss_bytes(os.getpid()),
        parents_rss_bytes=sum(map(rss_bytes, below)),
        main_descriptors=descriptors(os.getpid()),
        parents_descriptors=sum(map(descriptors, below)),
        processes=len(below),
        threads=len(os.listdir("/proc/self/task")),
        files=sum(len(folders) + len(names) for _, folders, names in os.walk(temporary)),
    )


def descendants(pid: int) -> list[int]:
    """Processes below ``pid``."""
    children = [int(p) for f in Path(f"/proc/{pid}/task").glob("*/children") for p in f.read_text().split()]
    return [*children, *(below for child in children for below in descendants(child))]


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def kernels(problem: Problem, shop: Workshop, toolchain: Toolchain, count: int) -> list[tuple[str, Built]]:
    """Built kernels of every kind, in turn, each with the verdict that it must have."""
    kinds = [list(BODIES)[number % len(BODIES)] for number in range(count)]
    proposed = [candidate(problem, BODIES[kind], number) for number, kind in enumerate(kinds)]
    wanted = {c.digest: kind.partition(",")[0] for c, kind in zip(proposed, kinds, strict=True)}
    options = {"staging_root": shop.staging, "timeout_s": 120.0, "jobs": build_jobs(shop.settings)}
    results = list(build_many(proposed, toolchain, shop.pool, **options))  # type: ignore[arg-type]
    broken = [outcome for _, outcome in results if not isinstance(outcome, Built)]
    if broken:
        raise RuntimeError(f"a kernel of the soak does not build: {broken[0]}")
    return [(wanted[c.digest], built) for c, built in results if isinstance(built, Built)]


def soak(shop: Workshop, report: Report, count: int, every: int, temporary: Path, seed: int) -> None:
    """All candidates, in random order."""
    if not shop.can_build() or shop.toolchain is None:
        raise RuntimeError("there is no compiler")
    problem, rng = leaky(), random.Random(seed)
    judge = Judge(problem, lowered=None, device=shop.device, pool=shop.pool, settings=shop.settings, seed=seed)
    built = kernels(problem, shop, shop.toolchain, report.kernels)
    verdicts: Counter[str] = Counter()
    for number in range(WARM_UP + count):
        if number % FAILED_SHARE == FAILED_SHARE - 1:
            wanted = BuildFailed.__name__
            broken = candidate(problem, NO_CODE, number)
            found: object = build(broken, shop.toolchain, shop.pool, staging_root=shop.staging, timeout_s=120.0)
        else:
            wanted, one = rng.choice(built)
            found = judge.check(one)
        name = type(found).__name__
        if name != wanted:
            report.surprises.append(f"{number}: {found} instead of {wanted}")
        done = number + 1 - WARM_UP
        verdicts[name] += done > 0
        if done >= 0 and done % every == 0:
            report.samples.append(look(done, temporary))
            print(report.samples[-1], file=sys.stderr, flush=True)
    report.verdicts = dict(sorted(verdicts.items()))


def rise(samples: Sequence[Sample], series: str) -> float:
    """How much a line through the second half rises from its first sample to its last."""
    half = samples[len(samples) // 2 :]
    x = np.array([s.candidates for s in half], dtype=np.float64)
    slope = float(np.polyfit(x, [getattr(s, series) for s in half], 1)[0])
    return round(slope * float(x[-1] - x[0]), 3)


def main() -> int:
    """Run, print, return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument("--candidates", type=int, default=1000, help="at least 8 times --every (default %(default)s)")
    parser.add_argument("--kernels", type=int, default=40, help="that are built, and judged in turn (default %(default)s)")
    parser.add_argument("--every", type=int, default=50, help="candidates between two looks (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    if arguments.candidates < 8 * arguments.every:
        parser.error("too few candidates for a line to be fitted")
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="torch_forge-soak-") as folder:
        temporary = Path(folder, "tmp")
        temporary.mkdir()
        os.environ["TMPDIR"], tempfile.tempdir = str(temporary), None
        settings = Settings.resolve({}, cache_dir=Path(folder, "cache"), seed=arguments.seed)
        with Workshop.open("cpu", settings) as shop:
            date = datetime.now(timezone.utc).isoformat(timespec="seconds")
            versions = (shop.device.name, torch.__version__, platform.python_version())
            report = Report(arguments.candidates, date, *versions, kernels=arguments.kernels)
            soak(shop, report, arguments.candidates, arguments.every, temporary, arguments.seed)
    report.rises = {series: rise(report.samples, series) for series in BOUNDS}
    report.grew = [series for series, bound in BOUNDS.items() if report.rises[series] > bound]
    report.seconds = round(time.monotonic() - began_s, 1)
    if arguments.json:
        arguments.json.write_text(json.dumps(asdict(report), indent=1) + "\n")
    print(json.dumps({name: value for name, value in asdict(report).items() if name != "samples"}, indent=1))
    return 1 if report.grew or report.surprises else 0


if __name__ == "__main__":
    sys.exit(main())
