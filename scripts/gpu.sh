#!/usr/bin/env bash
# What a GPU owner runs to check this version on a device: the GPU tests, then the suites whose figures docs/benchmarks.md quotes.
#
#   scripts/gpu.sh [tests|ops|models|all] [OUTPUT_FOLDER]
#
# Uses the Python in $PYTHON (default: python3), which must have a CUDA build of torch. Results are JSON files and logs in the folder.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
what=${1:-all}
out=${2:-build/gpu}
python=${PYTHON:-python3}
mkdir -p "$out"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
status=0

run() {
  local log=$1
  shift
  echo "-- $*"
  "$@" 2>&1 | tee "$out/$log.log" || status=1
}

case $what in tests | all)
  TORCH_FORGE_REQUIRE_GPU=1 run tests "$python" -m pytest -m gpu -q --no-header -p no:cacheprovider tests
  ;;
esac
case $what in ops | all)
  run ops "$python" scripts/bench.py --suite ops --json "$out/ops.json" ${BENCH_ARGUMENTS:-}
  ;;
esac
case $what in models | all)
  run models "$python" scripts/bench.py --suite models --json "$out/models.json" ${BENCH_ARGUMENTS:-}
  ;;
esac
exit $status
