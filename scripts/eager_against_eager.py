#!/usr/bin/env python3
"""Eager against eager through the whole timing protocol, many times: ``eager_against_eager.py [--runs N] [--device cuda]``.

Every claim of a speed-up is a false one. Prints one line a run and how many were false claims; exit status 1 if any was.
"""

from __future__ import annotations

import argparse
import sys

import torch

from torch_forge.benchmarking.confirm import confirm
from torch_forge.benchmarking.sides import Contender
from torch_forge.graphs.capture import graph_from_fx, trace_specs
from torch_forge.machine.device import device_info
from torch_forge.machine.locks import device_lane
from torch_forge.machine.workers import WorkerPool
from torch_forge.records.problem import Policy, Problem
from torch_forge.records.tensors import contiguous
from torch_forge.settings import Settings

SHAPES = ((64, 64), (512, 512), (2048, 1024))


def main() -> int:
    """Run, print, return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    settings = Settings.resolve()
    device = device_info(arguments.device, settings)
    contender = Contender("torch_forge.benchmarking.sides:eager_contender", {})
    claims = 0
    with WorkerPool(preload=["torch_forge.benchmarking.session_tasks"]) as pool:
        for run in range(arguments.runs):
            problem = _problem(SHAPES[run % len(SHAPES)])
            with device_lane(device):
                found = confirm(
                    problem, contender, device=device, pool=pool, settings=settings, seed=arguments.seed + run, check=None
                )
            claims += found.confirmed
            best = found.comparison
            figures = f"{best.ratio:.3f} [{best.ratio_low:.3f}, {best.ratio_high:.3f}]" if best else "no figures"
            demand = max((s.required_ratio for s in found.sessions), default=0.0)
            print(
                f"{run}: {problem.graph.inputs[0].shape} {figures}, demanded {demand:.3f}: {found.gate or 'a false claim'}"
            )
    print(f"{claims} false claims in {arguments.runs} runs")
    return 1 if claims else 0


def _problem(shape: tuple[int, int]) -> Problem:
    graph = graph_from_fx(trace_specs(lambda x: torch.softmax(x * 2 + 1, -1), [contiguous(shape, "float32")]))
    return Problem("softmax", graph, Policy.EAGER_EQUIVALENT)


if __name__ == "__main__":
    sys.exit(main())
