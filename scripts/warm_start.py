#!/usr/bin/env python3
"""How long a second process takes to put N winners to work: ``warm_start.py [--kernels 30] [--repeat 5] [--cache DIR]``.

The first part tunes N different regions for real, which takes minutes; with the same --cache it goes on where it was. The
second part starts fresh processes, each of which captures the same model and is timed from the first lookup in the
cache until the last winner is loaded, registered and bound.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torch_forge.dispatch.graph import captured_graphs
from torch_forge.graphs.partition import FxRegion, regions
from torch_forge.installing import Installed
from torch_forge.search.forge import forge_problem
from torch_forge.search.workshop import Deadline, Workshop
from torch_forge.settings import Settings

ROWS, WIDTH = 64, 256
SECONDS_A_KERNEL = 600.0
"""Limit for one search of the first part."""
INNER: tuple[Callable[[Tensor], Tensor], ...] = (F.gelu, torch.erf, torch.tanh, torch.sigmoid, F.softplus, F.mish)
OUTER: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    lambda x, y: y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6) + x,
    lambda x, y: (y - y.mean(-1, keepdim=True)) * x,
    lambda x, y: y * x + y.exp(),
    lambda x, y: (y * x + 1) * (y - x),
    lambda x, y: F.layer_norm(y + x, (WIDTH,)) * y,
)


class Regions(nn.Module):
    """``count`` regions, each with an input and a formula of its own."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.pairs = [(inner, outer) for outer in OUTER for inner in INNER][:count]

    def forward(self, *xs: Tensor) -> tuple[Tensor, ...]:
        """xs: float32, (ROWS, WIDTH), one for each region."""
        return tuple(outer(x, inner(x)) for x, (inner, outer) in zip(xs, self.pairs, strict=True))


def captured(count: int, device: str) -> list[FxRegion]:
    """The regions of the model, one for each workload."""
    model = Regions(count)
    xs = tuple(torch.randn(ROWS, WIDTH, device=device) for _ in range(count))
    with torch.no_grad():
        graphs = captured_graphs(lambda call: call(*xs), model._call_impl)
    found = [region for graph in graphs for region in regions(graph)[0]]
    return list({region.problem.workload: region for region in found}.values())


def put_to_work(found: list[FxRegion], shop: Workshop) -> Installed:
    """Winners of all regions, from the cache or, where it has none, from a search."""
    installed = Installed(shop)
    for region in found:
        forged = forge_problem(region.problem, region.lowered, shop, deadline=Deadline.after(SECONDS_A_KERNEL))
        if forged.result.verdict == "installed":
            installed.add(forged)
    return installed


def second_run(found: list[FxRegion], shop: Workshop) -> dict[str, float]:
    """Wall and processor seconds, and how many winners are callable afterwards."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    installed = put_to_work(found, shop)
    return {"installed": len(installed), "wall_s": time.perf_counter() - wall_s, "cpu_s": time.process_time() - cpu_s}


def main() -> int:
    """Parse, fill, measure, print; the exit status is 1 if not every region had a winner."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument("--kernels", type=int, default=len(INNER) * len(OUTER), help="at most %(default)s, the default")
    parser.add_argument("--repeat", type=int, default=5, help="fresh processes to measure (default: %(default)s)")
    parser.add_argument("--cache", type=Path, help="cache directory to fill and keep (default: a temporary one)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--second", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="torch_forge-warm-") as scratch:
        cache = options.cache or Path(scratch)
        found = captured(options.kernels, options.device)
        with Workshop.open(options.device, Settings.resolve(cache_dir=cache, peers="eager")) as shop:
            if options.second:
                print(json.dumps(second_run(found, shop)))
                return 0
            put_to_work(found, shop)
        again = [sys.executable, *sys.argv, "--second", "--cache", str(cache)]
        measured = [subprocess.run(again, check=True, capture_output=True, text=True) for _ in range(options.repeat)]
    runs = [json.loads(done.stdout) for done in measured]
    installed = min(int(run["installed"]) for run in runs)
    for name, unit in (("wall_s", "s"), ("cpu_s", "s of processor time")):
        values = sorted(run[name] for run in runs)
        print(f"{installed} winners to work in {statistics.median(values):.3f} {unit} ({values[0]:.3f} to {values[-1]:.3f})")
    return 0 if installed == options.kernels else 1


if __name__ == "__main__":
    sys.exit(main())
