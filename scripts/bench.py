#!/usr/bin/env python3
"""Run a benchmark suite: ``bench.py --suite cpu|ops|models [--json FILE [--resume]] [--only NAME ...] [--budget S]``."""

from __future__ import annotations

import argparse
import shlex
import sys

from torch_forge.errors import ForgeError
from torch_forge.suites.run import add_arguments, run_command


def main() -> int:
    """Parse, run, return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    add_arguments(parser)
    try:
        run_command(parser.parse_args(), command=shlex.join(["python", *sys.argv]), say=lambda line: print(line, flush=True))
    except ForgeError as error:
        print(error.explain(), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
