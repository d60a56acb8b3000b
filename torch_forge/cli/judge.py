"""``torch-forge judge``: a kernel against a reference, as a verdict with evidence and an exit code."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from torch_forge.settings import Settings

if TYPE_CHECKING:
    from torch_forge.judging import Judgement


def prepare_parser(parser: ArgumentParser) -> None:
    """The options."""
    parser.add_argument(
        "--reference",
        default="",
        metavar="FILE",
        help="a file with Model and get_inputs (and get_init_inputs), or file.py:function with get_inputs",
    )
    parser.add_argument(
        "--candidate",
        type=Path,
        metavar="FILE",
        help="the kernel: .cu or .cpp under the entry-point contract, or .py with ModelNew or a function candidate",
    )
    parser.add_argument("--device", default="", help="cpu, cuda or cuda:N; default: by the candidate's suffix")
    parser.add_argument(
        "--policy", default="eager-equivalent", help="how far numbers may be from eager's (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, help="decides all inputs; the same seed gives the same verdict")
    parser.add_argument("--any-size", action="store_true", help="the kernel claims to serve other sizes too: ask about them")
    parser.add_argument("--no-timing", action="store_true", help="only whether it is right, not whether it is faster")
    parser.add_argument(
        "--without", action="append", default=[], metavar="GATE", help="leave a gate out; the verdict says so (repeatable)"
    )
    parser.add_argument(
        "--untrusted", action="store_true", help="refuse to run it where the sandbox is below the stated minimum"
    )
    parser.add_argument("--list-gates", action="store_true", help="print what a kernel has to pass")
    parser.add_argument(
        "--print-interface", action="store_true", help="print what a kernel for this reference must look like"
    )
    parser.add_argument("--json", action="store_true", help="print the whole verdict as JSON")


COULD_NOT_JUDGE = 2


def run(args: Namespace, settings: Settings) -> int:
    """Judge. Returns 0 for accepted, 1 for rejected; an error that makes judging impossible is raised with exit code 2."""
    from torch_forge.errors import ForgeError

    try:
        return _run(args, settings)
    except ForgeError as error:
        error.exit_code = COULD_NOT_JUDGE
        raise


def _run(args: Namespace, settings: Settings) -> int:
    from torch_forge.building import load_reference
    from torch_forge.errors import UsageError
    from torch_forge.judging import judge, problem_for
    from torch_forge.machine.device import device_info
    from torch_forge.records.codec import dumps

    if args.list_gates:
        _print_gates()
        return 0
    if not args.reference:
        raise UsageError("there is no reference", advice="Give --reference FILE: what the kernel is to compute.")
    if not args.print_interface and args.candidate is None:
        raise UsageError("there is no candidate", advice="Give --candidate FILE, or --print-interface to see what to write.")
    device = args.device or _device_for(args.candidate)
    device_info(device, settings, measure=False)
    reference = load_reference(args.reference, device)
    if args.print_interface:
        from torch_forge.generation.interface_text import interface

        print(interface(problem_for(reference, args.policy), device.partition(":")[0]))
        return 0
    judged = judge(
        reference,
        args.candidate,
        policy=args.policy,
        settings=settings.with_(seed=args.seed, sandbox="require" if args.untrusted else None),
        without=args.without,
        any_size=args.any_size,
        timing=not args.no_timing,
    )
    print(dumps(judged.record) if args.json else _text(judged))
    return 0 if judged.accepted else 1


def _device_for(candidate: Path | None) -> str:
    if candidate is None or candidate.suffix != ".py":
        return "cuda" if candidate is not None and candidate.suffix == ".cu" else "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _print_gates() -> None:
    from torch_forge.records.gates import GATES

    for gate in GATES:
        print(f"{gate.name:18} {gate.stage.value:10} {gate.promise}{'' if gate.optional else ' (always on)'}")


def _text(judged: Judgement) -> str:
    lines = [str(judged), f"gates passed: {', '.join(judged.passed) or 'none'}"]
    if judged.gates.off:
        lines.append(f"left out: {', '.join(judged.gates.off)}")
    lines.append(f"sandbox: {', '.join(judged.sandbox.active) or 'none'}")
    lines += [f"sandbox lacks {layer}: {why}" for layer, why in judged.sandbox.missing.items()]
    lines += [f"not available: {gate}: {why}" for gate, why in judged.gates.missing.items()]
    lines += [f"weakness of these inputs: {w}" for w in judged.weaknesses]
    return "\n".join(lines)
