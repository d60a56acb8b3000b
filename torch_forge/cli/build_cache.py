"""``torch-forge build-cache``: tune models at lists of shapes now, so that no user waits later."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from torch_forge.settings import Settings


def prepare_parser(parser: ArgumentParser) -> None:
    """The options."""
    parser.add_argument("targets", nargs="+", metavar="MODEL", help="package.module:name or file.py[:name]")
    parser.add_argument(
        "--shapes", type=Path, metavar="FILE", help="JSON list of samples; default: the model file's get_inputs()"
    )
    parser.add_argument("--device", default="", help="cpu, cuda or cuda:N; default: cuda if there is one")
    parser.add_argument(
        "--budget", type=float, default=600.0, metavar="SECONDS", help="for one model at one shape (default %(default)s)"
    )
    parser.add_argument(
        "--policy", default="eager-equivalent", help="how far numbers may be from eager's (default %(default)s)"
    )


def run(args: Namespace, settings: Settings) -> int:
    """Tune every model at every shape; what is already decided costs no time. Returns 0, or 1 if a model failed."""
    import torch

    from torch_forge.building import jobs
    from torch_forge.machine.device import device_info
    from torch_forge.pipeline import autotune

    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    settings = settings.with_(budget_s=args.budget)
    device_info(device, settings, measure=False)  # a device that does not exist is said so before a model is loaded
    failed = 0
    for job in jobs(args.targets, args.shapes, device, seed=settings.seed):
        with torch.no_grad():
            result = autotune(job.model, job.call, policy=args.policy, settings=settings)
        result.revert()
        installed = sum(r.verdict == "installed" for r in result.report.regions)
        cached = sum(r.from_cache for r in result.report.regions)
        regions = f"{len(result.report.regions)} regions, {installed} with a kernel, {cached} already known"
        print(f"{job.target} sample {job.sample}: {regions}", flush=True)
        failed += not result.report.complete and not installed
    return 1 if failed else 0
