#!/usr/bin/env bash
# Compares the transports of a large request with what the GPU alone takes for
# it: one caller, one sequence of 4096 queries and keys, 16 query and 8 K/V heads
# of 128, bf16, causal; each request as a call of its own or as a message of an
# open stream. Needs one GPU.
#
#   server/bench/compare_transports.sh BIN_FOLDER [SECONDS] [REPETITIONS]
#
# BIN_FOLDER has attention-server, attention-load and gpu_bench. Repetitions
# visit the transports in turn; a row has the median of the p50s, its range, and
# its distance from what it is measured against.
set -euo pipefail
bin=$(readlink -f "$1")
seconds=${2:-4}
repetitions=${3:-5}
folder=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$folder"' EXIT

"$bin/attention-server" --backend=cuda --listen="unix:$folder/socket" --metrics_address= \
  --allow_shared_memory --allow_cuda_ipc 2>"$folder/log" &
server=$!
until [ -S "$folder/socket" ]; do
  kill -0 "$server" 2>/dev/null && [ "$SECONDS" -lt 120 ] || { cat "$folder/log"; exit 1; }
  sleep 0.2
done

# Milliseconds of one call.
gpu() {
  "$bin/gpu_bench" "$1" --min_ms=1000 b=1,hq=16,hkv=8,m=4096,d=128,mask=bottom_right |
    awk 'END {print $(NF - 2)}'
}
p50() {
  "$bin/attention-load" --server="unix:$folder/socket" --transport="$1" --calls="$2" --concurrency=1 --channels=1 \
    --warmup=1s --duration="${seconds}s" --dtype=bf16 --heads=16 --kv_heads=8 --head_dim=128 \
    --query_length=4096 --mask=causal --progress=false >"$folder/report" || return
  sed -n 's/^latency .* p50 \([0-9.]*\) .*/\1/p' "$folder/report"
}

for _ in $(seq "$repetitions"); do
  gpu --calls >>"$folder/kernel"
  gpu --copies >>"$folder/copies"
  for transport in cuda_ipc shm inline; do
    for calls in unary stream; do
      p50 "$transport" "$calls" >>"$folder/$transport.$calls" || { cat "$folder/log"; exit 1; }
    done
  done
done

of() { sort -n "$folder/$1" | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)], v[1], v[NR]}'; }
row() { printf '%-30s %8.3f  [%.3f-%.3f]  %s\n' "$1" $(of "$2") "${3:-}"; }
median() { of "$1" | cut -d ' ' -f 1; }
echo "ms, median of $repetitions [lowest-highest]"
beyond() { awk "BEGIN {printf \"%s %+.0f us\", \"$2\", 1000 * ($(median "$1") - $(median "$2"))}"; }
times() { awk "BEGIN {printf \"%.2f x pinned copies and kernel\", $(median "$1") / $(median copies)}"; }
row "kernel" kernel
row "cuda_ipc" cuda_ipc.unary "$(beyond cuda_ipc.unary kernel)"
row "cuda_ipc, stream" cuda_ipc.stream "$(beyond cuda_ipc.stream kernel)"
row "pinned copies and kernel" copies
for transport in shm inline; do
  row "$transport" $transport.unary "$(times $transport.unary)"
  row "$transport, stream" $transport.stream "$(times $transport.stream)"
done
