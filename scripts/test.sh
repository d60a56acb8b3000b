#!/usr/bin/env bash
# Set everything up in .venv, then check style and types and run the tests. Arguments go to pytest (then only it runs).
#   TORCH_FORGE_REQUIRE_GPU=1  a GPU test that skips is a failure
#   TORCH_FORGE_CI=1           a tool that could not be installed is an error
# PYTHON chooses the interpreter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

strict=()
[[ "${TORCH_FORGE_CI:-}" == 1 ]] && strict=(--strict)
"${PYTHON:-python3}" scripts/environment.py test "${strict[@]}"
python=.venv/bin/python

if (($#)); then
  exec "$python" -m pytest "$@"
fi

check() {  # name, arguments: run a tool, or say that it is missing
  if "$python" -c "import $1" 2>/dev/null; then
    echo "-- $*" >&2
    "$python" -m "$@"
  elif ((${#strict[@]})); then
    echo "-- $1 is not installed" >&2
    return 1
  else
    echo "-- $1 is not installed: skipped" >&2
  fi
}

check ruff check .
check mypy

# One test process a core on a CPU, at most four: each holds a torch. On a GPU one, so that timings are alone.
jobs=$(nproc)
((jobs > 4)) && jobs=4
nvidia-smi -L >/dev/null 2>&1 && jobs=0
parallel=()
((jobs)) && "$python" -c "import xdist" 2>/dev/null && parallel=(-n "$jobs" --dist loadfile)
exec "$python" -m pytest -q "${parallel[@]}"
