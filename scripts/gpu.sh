#!/usr/bin/env bash
# What a GPU owner runs to check this version on a device: the GPU tests, then the suites whose figures docs/benchmarks.md quotes.
#
#   scripts/gpu.sh [tests|judge|ops|models|all] [OUTPUT_FOLDER]
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
case $what in judge | all)  # what stands between a kernel and "accepted": the sandbox, the tools, the clocks, the zoo, known wins
  export TORCH_FORGE_REQUIRE_GPU=1
  pytest=("$python" -m pytest -m gpu -q --no-header -p no:cacheprovider -rfE --tb=short --durations=8)
  run sandbox "${pytest[@]}" tests/gpu/test_sandbox_gpu.py
  run faults "${pytest[@]}" tests/gpu/test_faults_gpu.py
  run sanitize "${pytest[@]}" tests/gpu/test_sanitize_gpu.py
  run timing "${pytest[@]}" tests/gpu/test_timing_gpu.py
  run judged "${pytest[@]}" tests/gpu/test_judge_gpu.py
  run zoo "${pytest[@]}" tests/zoo/test_judged_gpu.py
  run published "$python" scripts/judge_published.py --json "$out/published.json"
  run eager "$python" scripts/eager_against_eager.py --device cuda --runs 6
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
