#!/usr/bin/env bash
# From a fresh Debian 12 or Ubuntu 24.04 machine to an answered request:
# installs packages, builds, starts the server, sends a real request, checks the
# answer against the float64 reference, shows some metrics and stops the server.
#
# Uses the GPU if there is one with a CUDA toolkit, otherwise the CPU.
set -euo pipefail
cd "$(dirname "$0")/.."

deploy/install_packages.sh build

cuda=OFF
if nvidia-smi -L >/dev/null 2>&1 && command -v nvcc >/dev/null; then cuda=ON; fi
build=build/quickstart
echo "== Building (CUDA: $cuda)"
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DATTENTION_CUDA="$cuda" \
  -DATTENTION_BUILD_TESTS=OFF -DATTENTION_BUILD_BENCHMARKS=OFF >/dev/null
cmake --build "$build" --target attention-server attention-cli attention-load

echo "== Starting the server"
log=$build/server.log
"$build/bin/attention-server" --listen=127.0.0.1:0 \
  --metrics_address=127.0.0.1:0 --log_format=json >"$log" 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null || true' EXIT

# The log names the ports that the system chose.
address_of() {
  sed -n "s/.*\"message\":\"$1\".*\"address\":\"\([^\"]*\)\".*/\1/p" "$log" | head -n 1
}
for _ in $(seq 100); do
  [ -n "$(address_of listening)" ] && [ -n "$(address_of 'serving metrics')" ] && break
  kill -0 "$server" 2>/dev/null || { cat "$log"; exit 1; }
  sleep 0.1
done
rpc=$(address_of listening)
metrics=$(address_of 'serving metrics')

echo "== Attention of a real model layer (tests/data), checked against float64"
"$build/bin/attention-cli" info --server="$rpc"
"$build/bin/attention-cli" attend --server="$rpc" --lse --check \
  --input=tests/data/activations_slice_bf16.safetensors \
  --output="$build/output.safetensors"

echo "== Metrics (http://$metrics/metrics)"
exec 3<>"/dev/tcp/${metrics%:*}/${metrics##*:}"
printf 'GET /metrics HTTP/1.0\r\nHost: %s\r\n\r\n' "$metrics" >&3
grep -E '^attention_(requests_total|batches_total|flops_total|bytes_total|build_info)' <&3
exec 3>&-

echo "== Stopping the server"
kill -TERM "$server"
wait "$server"
trap - EXIT
echo "Done. To keep a server running: $build/bin/attention-server"
