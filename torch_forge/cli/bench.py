"""``torch-forge bench``: the benchmark suites, both sides of every ratio in one run."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from torch_forge.settings import Settings
from torch_forge.suites import run as suites


def prepare_parser(parser: ArgumentParser) -> None:
    """The options."""
    suites.add_arguments(parser)


def run(args: Namespace, _: Settings) -> int:
    """Run the suite and print its table."""
    suites.run_command(args, command=" ".join(["torch-forge", *sys.argv[1:]]), say=lambda line: print(line, flush=True))
    return 0
