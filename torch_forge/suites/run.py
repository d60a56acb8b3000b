"""Run a suite: forge every workload with both peers in the same run, and say how far each is from the bound.

The forge and the device are arguments, so the loop is tested without a compiler and serves other devices unchanged.
"""

from __future__ import annotations

import gc
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timezone
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Protocol

from torch_forge.errors import ForgeError, UsageError
from torch_forge.knowledge.roofline import memory_us
from torch_forge.machine.files import atomic_write
from torch_forge.records.device import DeviceInfo
from torch_forge.records.session import RegionResult
from torch_forge.settings import Settings
from torch_forge.suites.results import HEADER, Row, SuiteReport, group_means, means_text, row_text
from torch_forge.suites.workload import Function, Workload

SUITES = {"cpu": "cpu", "models": "cuda", "ops": "cuda"}
"""Suite -> device it is meant for."""
BUDGET_S = 60.0
QUICK_BUDGET_S = 10.0
MODEL_BUDGETS = 4.0
"""A model has several regions: it gets this many times the budget of a workload."""


class Forged(Protocol):
    """What ``torch_forge.forge`` returns, as far as a suite is concerned."""

    @property
    def region(self) -> RegionResult:
        """The whole function as one region."""
        ...


Forge = Callable[[Function, tuple[Any, ...]], Forged]
OpenForge = Callable[[str, float], AbstractContextManager[tuple[DeviceInfo, Forge]]]
"""From a device name and the seconds one workload may take."""


def workloads(suite: str, only: Sequence[str] = ()) -> tuple[Workload, ...]:
    """The workloads of a suite, or those whose names match a pattern. Raises UsageError if a pattern matches none."""
    from torch_forge.suites import cpu, ops

    every = {"cpu": cpu.WORKLOADS, "ops": ops.WORKLOADS}[suite]
    unmatched = [pattern for pattern in only if not any(fnmatch(w.name, pattern) for w in every)]
    if unmatched:
        raise UsageError(
            f"no workload of suite {suite!r} is called {', '.join(unmatched)}",
            advice="Known: " + ", ".join(w.name for w in every),
        )
    return tuple(w for w in every if not only or any(fnmatch(w.name, pattern) for pattern in only))


def run(chosen: Sequence[Workload], device: DeviceInfo, forge: Forge, *, seed: int = 0) -> Iterator[Row]:
    """Forge the workloads one after the other; a row as soon as each is done."""
    for workload in chosen:
        yield _run_one(workload, device, forge, seed)
        _release(device)


def _run_one(workload: Workload, device: DeviceInfo, forge: Forge, seed: int) -> Row:
    where = f"cuda:{device.index}" if device.type == "cuda" else device.type
    bound_us = memory_us(workload.min_bytes, device)
    try:
        region = forge(*workload.make(where, seed=seed)).region
    except ForgeError as error:
        return Row(workload.name, workload.group, None, None, None, bound_us, "failed", "", None, None, why=str(error))
    return Row(
        name=workload.name,
        group=workload.group,
        eager_us=region.eager_us or None,  # 0: nothing was forged, so nothing was timed
        inductor_us=region.inductor_us,
        forge_us=region.forge_us,
        bound_us=bound_us,
        verdict=region.verdict,
        origin=region.origin,
        error_vs_fp64=region.error.rms if region.error else None,
        eager_error_vs_fp64=region.eager_error.rms if region.eager_error else None,
        why=region.why,
    )


def _release(device: DeviceInfo) -> None:
    """Give back what the last workload held: the largest ones need a good part of the device together with float64."""
    gc.collect()
    if device.type == "cuda":
        import torch

        torch.cuda.empty_cache()


def report(rows: Sequence[Row], device: DeviceInfo, *, command: str) -> SuiteReport:
    """The rows with what a reader must know to repeat them."""
    import torch

    return SuiteReport(
        device=device.name,
        torch=torch.__version__,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=command,
        copy_gb_per_s=device.copy_gb_per_s,
        workloads=tuple(rows),
    )


def add_arguments(parser: ArgumentParser) -> None:
    """The options of ``scripts/bench.py`` and ``torch-forge bench``."""
    parser.add_argument("--suite", choices=sorted(SUITES), required=True)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only these workloads; * and ? are wildcards")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="keep the rows that the file of --json has from this device and torch, and run what is missing; "
        "what --only names is run again",
    )
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_BUDGET_S:.0f} s a workload instead of {BUDGET_S:.0f}")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="tuning of one workload, or of one whole model")
    parser.add_argument("--device", help="default: the one that the suite is for")


def run_command(
    arguments: Namespace, *, command: str, say: Callable[[str], None], open_forge: OpenForge | None = None
) -> None:
    """Run as the options say, a line per workload as it ends; the file always holds the rows so far."""
    where = arguments.device or SUITES[arguments.suite]
    budget_s = QUICK_BUDGET_S if arguments.quick else BUDGET_S
    if arguments.suite == "models":
        from torch_forge.suites.models import run_models

        model_s = arguments.budget or MODEL_BUDGETS * budget_s
        run_models(where, budget_s=model_s, path=arguments.json, command=command, say=say)
        return
    chosen = workloads(arguments.suite, arguments.only)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
    with (open_forge or _open_forge)(where, arguments.budget or budget_s) as (device, forge):
        again = {w.name for w in chosen} if arguments.only else set()
        rows = {r.name: r for r in _earlier(arguments, device)}
        left = [w for w in chosen if w.name in again or w.name not in rows]
        say(f"{device.name}: copy {device.copy_gb_per_s:.0f} GB/s; times in microseconds")
        say(HEADER)
        try:
            for row in run(left, device, forge):
                rows[row.name] = row
                say(row_text(row))
                if arguments.json:  # after each row: a run of hours may be killed
                    atomic_write(arguments.json, report(list(rows.values()), device, command=command).to_json())
        finally:
            for means in group_means(list(rows.values())):
                say(means_text(means))


def _earlier(arguments: Namespace, device: DeviceInfo) -> list[Row]:
    """The rows to go on from. Raises UsageError if they were measured on another device or with another torch."""
    import torch

    if not arguments.resume or not arguments.json or not arguments.json.exists():
        return []
    path: Path = arguments.json
    try:
        found = SuiteReport.from_json(path.read_text(encoding="utf-8"))
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(
            f"{path} holds no results of a suite: {error}", advice="Leave --resume out to replace it."
        ) from error
    if (found.device, found.torch) != (device.name, torch.__version__):
        raise UsageError(
            f"{path} was made on {found.device} with torch {found.torch}, not on {device.name} with {torch.__version__}",
            advice="Figures of two machines do not mix: choose another file, or leave --resume out to replace it.",
        )
    return list(found.workloads)


@contextmanager
def _open_forge(where: str, budget_s: float) -> Iterator[tuple[DeviceInfo, Forge]]:
    """``torch_forge.forge`` in one workshop for the whole suite: the workers are started once."""
    import torch_forge
    from torch_forge.search.workshop import Workshop

    settings = Settings.resolve(budget_s=budget_s)
    with Workshop.open(where, settings) as shop:

        def forge(function: Function, args: tuple[Any, ...]) -> Forged:
            return torch_forge.forge(function, args, settings=settings, shop=shop, measure=True)

        yield shop.device, forge
