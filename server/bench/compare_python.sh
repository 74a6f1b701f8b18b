#!/usr/bin/env bash
# Compares attention-server with python_server.py, on a machine with a GPU:
# 64 callers of one query, 512 keys, 8 heads of 64, bf16, over a unix socket.
# Repetitions visit the servers in turn.
#
#   PYTHONPATH=build/python server/bench/compare_python.sh BIN_FOLDER [SECONDS] [REPETITIONS]
#
# BIN_FOLDER has attention-server and attention-load.
set -euo pipefail
bin=$(readlink -f "$1")
seconds=${2:-4}
repetitions=${3:-3}
folder=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; rm -rf "$folder"' EXIT

"$bin/attention-server" --listen="unix:$folder/attention" --metrics_address= 2>"$folder/log" &
pids+=($!)
for threads in 1 4 16; do
  python3 "$(dirname "$0")/python_server.py" --threads="$threads" \
    --listen="unix:$folder/python-$threads" >>"$folder/log" 2>&1 &
  pids+=($!)
done

for server in attention python-1 python-4 python-16; do
  until [ -S "$folder/$server" ]; do
    [ "$SECONDS" -lt 60 ] || { cat "$folder/log"; exit 1; }
    sleep 0.2
  done
done

for repetition in $(seq "$repetitions"); do
  for server in attention python-1 python-4 python-16; do
    rate=$("$bin/attention-load" --server="unix:$folder/$server" --connect_timeout=60s \
      --concurrency=64 --channels=8 --warmup=1s --duration="${seconds}s" --dtype=bf16 \
      --heads=8 --head_dim=64 --query_length=1 --key_length=512 --progress=false |
      grep -E 'answers|latency|batch' | tr -s ' \n' ' ') || { cat "$folder/log"; exit 1; }
    echo "$repetition $server: $rate"
  done
done
