#!/usr/bin/env bash
# Collects programs with the shared libraries they need, so that they run on any
# x86-64 Linux with a glibc at least as new, without installing packages:
#
#   deploy/bundle.sh OUTPUT_FOLDER PROGRAM...
#
# OUTPUT_FOLDER gets bin/ (wrappers), libexec/ (programs, stripped) and lib/. The
# C library and the GPU driver stay the target machine's.
set -euo pipefail
if [ $# -lt 2 ]; then
  sed -n '2,8s/^# \{0,1\}//p' "$0"
  exit 2
fi
output=$1
shift
mkdir -p "$output/bin" "$output/libexec" "$output/lib"

for program in "$@"; do
  name=$(basename "$program")
  install "$program" "$output/libexec/$name"
  strip "$output/libexec/$name"
  cat >"$output/bin/$name" <<'WRAPPER'
#!/bin/sh
root=$(dirname "$(dirname "$(readlink -f "$0")")")
LD_LIBRARY_PATH="$root/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
  exec "$root/libexec/$(basename "$0")" "$@"
WRAPPER
  chmod +x "$output/bin/$name"
  ldd "$program" | awk '$3 ~ /^\// {print $1, $3}'
done | sort -u | while read -r name path; do
  case "$name" in
    libc.so.* | libm.so.* | libpthread.so.* | libdl.so.* | librt.so.* | libcuda.so.*) ;;
    *) install -m 644 "$(readlink -f "$path")" "$output/lib/$name" ;;
  esac
done
echo "$output: $(du -sh "$output" | cut -f 1)"
