"""The ``torch-forge`` command: parse, call one sub-command, turn an error into a message and an exit code."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from torch_forge.errors import ForgeError
from torch_forge.settings import ENVIRONMENT, Settings
from torch_forge.version import __version__

COMMANDS = {
    "doctor": "what was found on this machine, and what to do",
    "cache": "look into the cache and look after it",
    "build-cache": "tune models at lists of shapes ahead of time",
    "judge": "check and time one kernel against a reference",
    "bench": "run a benchmark suite",
    "report": "show a saved report",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code: 0, or the error's own (``torch_forge.errors``), 130 after Ctrl-C."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        return int(args.run(args, Settings.resolve()) or 0)
    except ForgeError as error:
        print(f"torch-forge: {error.explain()}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `torch-forge ... | head`
        sys.stderr.close()
        return 0


def _parser() -> argparse.ArgumentParser:
    variables = "\n".join(f"  {name:24} {meaning}" for name, (_, meaning) in ENVIRONMENT.items())
    parser = argparse.ArgumentParser(
        prog="torch-forge", description="Faster kernels for a PyTorch model, proved right before they are used.",
        epilog=f"environment:\n{variables}", formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"torch-forge {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        module = importlib.import_module(f"torch_forge.cli.{name.replace('-', '_')}")
        sub = commands.add_parser(name, help=summary, description=summary)
        module.prepare_parser(sub)
        sub.set_defaults(run=module.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
