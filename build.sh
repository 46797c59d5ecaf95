#!/usr/bin/env bash
# Builds, installs and tests torchair: a thin layer over pip and make. Nothing is compiled and nothing is linked.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

usage() {
  cat <<'END'
usage: bash build.sh [-c] [-i] [-u] [-s] [-j[n]] [-v] [-g path] [-h]
  -c        build output/torchair-<version>-py3-none-any.whl (this is the default)
  -i        build it, and install it
  -u        run the unit tests
  -s        run the slower system tests
  -j[n]     with n processes; without n, as many as there are cores
  -v        say more
  -g path   a compiler, for builds that compile; this one does not, and says so
  -h        this text

PYTHON (or TARGET_PYTHON_PATH) is the interpreter to build for, python3 by default.
END
}

python="${PYTHON:-${TARGET_PYTHON_PATH:-python3}}"
command -v "$python" >/dev/null || { echo "build.sh: there is no $python; set PYTHON" >&2; exit 2; }
tasks=()
jobs=()
loud=()
while getopts ':ciusj:vg:h' option; do
  case "$option" in
    c) tasks+=(wheel) ;;
    i) tasks+=(wheel install) ;;
    u) tasks+=(unit) ;;
    s) tasks+=(system) ;;
    # The number may be left out: what came instead is the next argument.
    j) if [[ "$OPTARG" =~ ^[1-9][0-9]*$ ]]; then jobs=("JOBS=$OPTARG")
       else OPTIND=$((OPTIND - 1)); jobs=("JOBS=$(getconf _NPROCESSORS_ONLN)"); fi ;;
    v) loud=(--verbose) ;;
    g) echo "build.sh: nothing is compiled, so $OPTARG is not used" ;;
    h) usage; exit 0 ;;
    :) if [[ "$OPTARG" == j ]]; then jobs=("JOBS=$(getconf _NPROCESSORS_ONLN)")
       else echo "build.sh: -$OPTARG needs a value" >&2; usage >&2; exit 2; fi ;;
    *) echo "build.sh: there is no option -$OPTARG" >&2; usage >&2; exit 2 ;;
  esac
done
shift $((OPTIND - 1))
[[ $# -eq 0 ]] || { echo "build.sh: what is $1?" >&2; usage >&2; exit 2; }
[[ ${#tasks[@]} -gt 0 ]] || tasks=(wheel)

run_make() { make "$@" SETUP=0 PYTHON="$python" ${jobs[@]+"${jobs[@]}"}; }

for task in "${tasks[@]}"; do
  case "$task" in
    wheel)
      rm -f output/torchair-*.whl
      "$python" -m pip wheel --no-deps --no-build-isolation --wheel-dir output ${loud[@]+"${loud[@]}"} . ;;
    install) "$python" -m pip install --no-deps --force-reinstall ${loud[@]+"${loud[@]}"} output/torchair-*.whl ;;
    unit) run_make test ${loud[@]+ARGS=-v} ;;
    system) run_make test-full ARGS="-m full ${loud[*]+-v}" ;;
  esac
done
