#!/usr/bin/env bash
# Set everything up in .venv, then run the main job (quickstart.py) on this machine's GPU, or on its CPU.
# Arguments go to quickstart.py. PYTHON chooses the interpreter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

"${PYTHON:-python3}" scripts/environment.py quickstart
exec .venv/bin/python scripts/quickstart.py "$@"
