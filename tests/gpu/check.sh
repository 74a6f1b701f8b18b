#!/usr/bin/env bash
# Checks and measures the CUDA backend on a machine with a GPU, with the real
# server and client programs. Prints one summary line per step and exits
# non-zero if any failed.
#
#   deploy/bundle.sh BUNDLE build/release/bin/attention-* build/release/bin/gpu_bench \
#     build/release/tests/bin/{attention_*_test,paged_*_test,float8_test,portable_choice_test,prefill*_test,large_tensors_test,wide_strides_test,engine_test,compute_test,compute_stream_test,gpu_memory_test,sessions_device_test,resident_batch_test,input_upload_test,stream_test,session_backend_test}
#   tests/gpu/check.sh BUNDLE [ACTIVATIONS_FOLDER] [LOG_FOLDER]
#
# Only BUNDLE, this script and the driver are needed on that machine;
# compute-sanitizer, where it is on the PATH, checks the kernels' accesses. Its
# racecheck wants other kernels (kWarpArrivals in kernels/cuda/barrier.cuh): the
# variable RACECHECK_BUNDLE names a bundle of attention_corner_test, prefill_test
# and paged_history_test, built with -DCMAKE_CUDA_FLAGS=-DATTENTION_RACECHECK.
set -uo pipefail
bundle=$(readlink -f "$1")
activations=${2:-../shared/activations}
logs=$(readlink -m "${3:-build/gpu-check}")
mkdir -p "$logs"
cd "$(dirname "$0")/../.."
failed=0

# A filter that no test matches passes otherwise.
ran_nothing() { grep -q '^\[==========\] 0 tests' "$1"; }

# step NAME COMMAND...: runs it, keeps its output, prints the verdict.
step() {
  local name=$1 start=$SECONDS
  shift
  if timeout 200 "$@" >"$logs/$name.log" 2>&1 && ! ran_nothing "$logs/$name.log"; then
    echo "ok      $name ($((SECONDS - start)) s) $(grep -E '^\[  (PASSED|SKIPPED) ' "$logs/$name.log" | head -n 2 | tr '\n' ' ')"
  else
    echo "FAILED  $name ($((SECONDS - start)) s)"
    tail -n 15 "$logs/$name.log"
    failed=1
  fi
}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader

for test in sweep corner invariance activations; do
  step "kernels-$test" "$bundle/bin/attention_${test}_test" '--gtest_filter=*Cuda*'
done
for test in sweep history invariance activations; do
  step "kernels-paged-$test" "$bundle/bin/paged_${test}_test" '--gtest_filter=*Cuda*'
done
step kernels-float8 "$bundle/bin/float8_test" '--gtest_filter=*Cuda*'
step kernel-choice "$bundle/bin/portable_choice_test"
# On compute capability 9.0; elsewhere skipped.
for test in prefill_choice prefill prefill_chunks prefill_launch; do
  step "kernels-$test" "$bundle/bin/${test}_test"
done
step large-tensors "$bundle/bin/large_tensors_test"
step wide-strides "$bundle/bin/wide_strides_test"
step engine "$bundle/bin/engine_test" '--gtest_filter=*Cuda*'
step server-in-process "$bundle/bin/compute_test" '--gtest_filter=*Cuda*'
step streams-of-requests "$bundle/bin/compute_stream_test" '--gtest_filter=*Cuda*'
step gpu-memory "$bundle/bin/gpu_memory_test"
step sessions "$bundle/bin/sessions_device_test" '--gtest_filter=*Cuda*'
step resident-batches "$bundle/bin/resident_batch_test" '--gtest_filter=*/Cuda'
step input-upload "$bundle/bin/input_upload_test"
step stream "$bundle/bin/stream_test"
step session-calls "$bundle/bin/session_backend_test" '--gtest_filter=*/Cuda'

socket=$(mktemp -u "${TMPDIR:-/tmp}/attention-XXXXXX.sock")
"$bundle/bin/attention-server" --backend=cuda --listen="127.0.0.1:0,unix:$socket" \
  --metrics_address=127.0.0.1:0 --log_format=json --allow_shared_memory --allow_cuda_ipc \
  --warmup_configs=bf16:16/8:128:causal,bf16:8:64 \
  2>"$logs/server.log" &
server=$!
trap 'kill "$server" 2>/dev/null' EXIT
address_of() {
  sed -n "s/.*\"message\":\"$1\".*\"address\":\"\([^\"]*\)\".*/\1/p" "$logs/server.log" | head -n 1
}
for _ in $(seq 300); do
  [ -n "$(address_of 'serving metrics')" ] && break
  sleep 0.1
done
rpc=$(address_of listening)
metrics=$(address_of 'serving metrics')
cli=$bundle/bin/attention-cli
load=$bundle/bin/attention-load
gpu_memory_mib() {
  nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits | head -n 1
}
rss_kib() { awk '/^VmRSS/ {print $2}' "/proc/$server/status"; }
summary() {
  grep -hE 'answers|latency|batch|wire|GB/s|tokens/s|^step|compute' "$logs/$1.log" | head -n 12
}

grep -oE '"message":"(measured devices|not all devices).*' "$logs/server.log"
step info "$cli" info --server="$rpc"
for file in tests/data/*.safetensors "$activations"/*.safetensors; do
  [ -e "$file" ] || continue
  name=$(basename "$file" .safetensors)
  step "attend-$name" "$cli" attend --server="$rpc" --input="$file" --lse --check
  grep '^check' "$logs/attend-$name.log"
done
step weights "$cli" attend --server="$rpc" --lse --weights --check \
  --input=tests/data/activations_slice_bf16.safetensors

prefill=(--dtype=bf16 --heads=16 --kv_heads=8 --head_dim=128 --query_length=4096 --mask=causal)
step load-verified "$load" --server="$rpc" --concurrency=8 --requests=300 --verify \
  --dtype=bf16 --heads=16 --kv_heads=8 --query_length=512 --lse --progress=false
# Above and below the size from which pinned tensors are copied by the GPU alone.
for transport in stream shm cuda_ipc; do
  for length in 33 2048; do
    step "load-$transport-$length" "$load" --server="$rpc" --transport="$transport" --concurrency=8 \
      --requests=200 --verify --dtype=bf16 --heads=16 --kv_heads=8 --head_dim=128 \
      --query_length="$length" --mask=causal --lse --progress=false
  done
done
for transport in inline shm cuda_ipc; do
  step "load-calls-stream-$transport" "$load" --server="$rpc" --calls=stream \
    --transport="$transport" --concurrency=16 --requests=2000 --verify=0.1 --dtype=bf16 --heads=16 \
    --kv_heads=8 --head_dim=128 --query_length=100 --mask=causal --lse --progress=false
done
# One caller: large answers are computed in parts, of rows or of heads.
for layout in bshd bhsd; do
  step "load-parts-$layout" "$load" --server="unix:$socket" --transport=shm --concurrency=1 \
    --requests=50 --inputs=2 --verify --layout="$layout" "${prefill[@]}" --lse --progress=false
done
step load-prefill-1 "$load" --server="unix:$socket" --concurrency=1 --warmup=2s \
  --duration=8s "${prefill[@]}" --progress=false
step load-prefill-8 "$load" --server="unix:$socket" --concurrency=8 --channels=8 --warmup=2s \
  --duration=8s "${prefill[@]}" --progress=false
# Sessions: answers first, then figures.
decode=(--mode=decode --dtype=bf16 --heads=16 --kv_heads=8 --head_dim=128 --context=4096
  --input_memory_mib=4096 --progress=false)
for transport in inline stream; do
  step "decode-verified-$transport" "$load" --server="$rpc" --transport="$transport" --concurrency=8 \
    --sessions=2 --layers=3 --requests=3000 --verify --verify_rows=200 --lse "${decode[@]}"
  step "decode-1-$transport" "$load" --server="unix:$socket" --transport="$transport" \
    --concurrency=1 --channels=1 --warmup=1s --duration=5s "${decode[@]}"
  step "decode-64-$transport" "$load" --server="unix:$socket" --transport="$transport" \
    --concurrency=64 --channels=8 --warmup=1s --duration=5s "${decode[@]}"
done
step decode-window "$load" --server="$rpc" --concurrency=4 --requests=1000 --verify \
  --window_left=1000 --step_tokens=4 "${decode[@]}"
before="$(gpu_memory_mib) MiB, RSS $(rss_kib) KiB"
step load-small-100k "$load" --server="unix:$socket" --concurrency=64 --channels=8 \
  --requests=100000 --dtype=bf16 --heads=8 --head_dim=64 --query_length=1 \
  --key_length=512 --progress=false
between="$(gpu_memory_mib) MiB, RSS $(rss_kib) KiB"
step load-small-again "$load" --server="unix:$socket" --concurrency=64 --channels=8 \
  --requests=100000 --dtype=bf16 --heads=8 --head_dim=64 --query_length=1 \
  --key_length=512 --progress=false
echo "GPU and host memory: before $before; after 100,000 requests $between; after 200,000 $(gpu_memory_mib) MiB, RSS $(rss_kib) KiB"
for run in load-prefill-1 load-prefill-8 load-small-100k \
  decode-1-inline decode-1-stream decode-64-inline decode-64-stream; do
  echo "-- $run"
  summary "$run"
done
exec 3<>"/dev/tcp/${metrics%:*}/${metrics##*:}"
printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
cat <&3 >"$logs/metrics.txt"
exec 3>&-
grep -E '^attention_(requests_total|requests_in_flight|flops_total|compute_seconds_total|achieved|memory_bytes|batches_total|batch_prediction_ratio_(sum|count))' "$logs/metrics.txt"

kill -TERM "$server"
wait "$server"
status=$?
trap - EXIT
[ "$status" -eq 0 ] && echo "ok      server exit" || { echo "FAILED  server exit $status"; failed=1; }
if command -v compute-sanitizer >/dev/null; then
  # The sanitizer follows the program through the wrapper's exec.
  sanitize() {
    local tool=$1 program=$2 filter=$3
    step "$tool-$(basename "$program")" compute-sanitizer --tool "$tool" --error-exitcode 1 \
      --target-processes all "$program" "--gtest_filter=$filter"
  }
  sanitize memcheck "$bundle/bin/attention_corner_test" '*Cuda*-*More*:*LongSums*:*Packed*:*Heads*:*Batch*'
  sanitize memcheck "$bundle/bin/engine_test" '*/Cuda'
  sanitize memcheck "$bundle/bin/prefill_test" '*RowsWithoutKeys*:*Shifted*:*NanInOneHead*'
  sanitize memcheck "$bundle/bin/prefill_launch_test" '*AsManySequences*:*MemoryOfLists*'
  if [ -n "${RACECHECK_BUNDLE:-}" ]; then
    racecheck=$(readlink -f "$RACECHECK_BUNDLE")/bin
    sanitize racecheck "$racecheck/attention_corner_test" '*InfiniteValues*/Cuda:*ConstantValues*/Cuda:*ScoresOf*/Cuda'
    sanitize racecheck "$racecheck/prefill_test" '*RowsWithoutKeys*:*NanInOneHead*'
    sanitize racecheck "$racecheck/paged_history_test" '*/Cuda'
  else
    echo "skipped racecheck: no RACECHECK_BUNDLE"
  fi
else
  echo "skipped compute-sanitizer: not installed"
fi
exit "$failed"
