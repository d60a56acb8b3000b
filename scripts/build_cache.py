#!/usr/bin/env python3
"""Fill a cache of kernels offline: ``torch-forge build-cache`` under the name that a checkout has."""

from __future__ import annotations

import sys

from torch_forge.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["build-cache", *sys.argv[1:]]))
