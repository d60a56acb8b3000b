"""``torch-forge judge``: a kernel against a reference, as a verdict with evidence and an exit code."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from torch_forge.settings import Settings


def prepare_parser(parser: ArgumentParser) -> None:
    """The options."""
    parser.add_argument(
        "--reference",
        required=True,
        metavar="FILE",
        help="a file with Model and get_inputs, or file.py:function with get_inputs",
    )
    parser.add_argument(
        "--candidate", type=Path, metavar="FILE", help="the kernel: .cu or .cpp under the entry-point contract"
    )
    parser.add_argument("--device", default="", help="cpu, cuda or cuda:N; default: by the candidate's suffix")
    parser.add_argument(
        "--policy", default="eager-equivalent", help="how far numbers may be from eager's (default %(default)s)"
    )
    parser.add_argument(
        "--print-interface", action="store_true", help="print what a kernel for this reference must look like"
    )
    parser.add_argument("--json", action="store_true", help="print the whole verdict as JSON")


def run(args: Namespace, settings: Settings) -> int:
    """Judge. Returns 0 for accepted, 1 for rejected; errors that make judging impossible are raised."""
    from torch_forge.building import load_reference
    from torch_forge.errors import UsageError
    from torch_forge.judging import judge, problem_for
    from torch_forge.machine.device import device_info
    from torch_forge.records.codec import dumps

    if not args.print_interface and args.candidate is None:
        raise UsageError("there is no candidate", advice="Give --candidate FILE, or --print-interface to see what to write.")
    device = args.device or ("cuda" if args.candidate is not None and args.candidate.suffix == ".cu" else "cpu")
    device_info(device, settings, measure=False)
    reference, call = load_reference(args.reference, device)
    if args.print_interface:
        from torch_forge.generation.interface_text import interface

        print(interface(problem_for(reference, call, args.policy), device.partition(":")[0]))
        return 0
    judged = judge(reference, args.candidate, call, policy=args.policy, settings=settings)
    print(dumps(judged.trial) if args.json else judged)
    return 0 if judged.accepted else 1
