#!/usr/bin/env bash
# Installs what the project needs from the distribution's packages, on Debian 12
# and Ubuntu 24.04. Usage: install_packages.sh [build|test]   (default: build)
#
# `build` is enough for the server and its clients, `test` adds what the tests
# use. Packages that are there already are left alone.
set -euo pipefail

build_packages=(
  build-essential ccache cmake ninja-build pkg-config
  libabsl-dev libgrpc++-dev libgrpc-dev libprotobuf-dev protobuf-compiler
  protobuf-compiler-grpc libhwy-dev libssl-dev nlohmann-json3-dev
  libspdlog-dev prometheus-cpp-dev
)
test_packages=(
  clang curl git libbenchmark-dev libclang-rt-14-dev libgmock-dev libgtest-dev
  prometheus python3 python3-grpcio python3-numpy python3-protobuf
  python3-pytest python3-venv python3-yaml
)

wanted=("${build_packages[@]}")
case "${1:-build}" in
  build) ;;
  test) wanted+=("${test_packages[@]}") ;;
  *) echo "usage: $0 [build|test]" >&2; exit 2 ;;
esac
# Ubuntu 24.04 ships a later clang; its runtime package carries that number.
if ! grep -q bookworm /etc/os-release; then
  wanted=("${wanted[@]/libclang-rt-14-dev/libclang-rt-18-dev}")
fi

missing=()
for package in "${wanted[@]}"; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

sudo=()
[ "$(id -u)" -eq 0 ] || sudo=(sudo)
echo "Installing: ${missing[*]}"
# Some of these packages ship services (prometheus); none should be started by
# an installation for a build.
"${sudo[@]}" apt-get update -qq
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
