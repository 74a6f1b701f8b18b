#!/usr/bin/env bash
# Installs what is needed, builds everything and runs the tests.
#
#   tests/run.sh                 optimised build, all tests; compiles the CUDA
#                                code where nvcc is found, runs it where a GPU is
#   tests/run.sh asan|ubsan|tsan the same tests under a sanitizer (CPU only)
#   tests/run.sh --no-install …  does not touch the system's packages
set -euo pipefail
cd "$(dirname "$0")/.."

install=1
[ "${1:-}" = --no-install ] && { install=0; shift; }
preset=${1:-release}
case "$preset" in
  release | dev | cuda | asan | ubsan | tsan) ;;
  *) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
[ "$install" -eq 0 ] || deploy/install_packages.sh test

cmake --preset "$preset"
cmake --build --preset "$preset"
ctest --test-dir "build/$preset" --output-on-failure --no-tests=error
