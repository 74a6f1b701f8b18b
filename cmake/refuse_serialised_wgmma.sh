#!/bin/sh
# A compiler launcher: runs a CUDA compiler, and fails where it succeeded with a
# remark that warpgroup products were serialised or had waits injected (codes
# C7500 to C7599). ptxas calls that information, which no option makes an error,
# though the kernel loses most of its speed.
messages=$(mktemp) || exit 1
trap 'rm -f "$messages"' EXIT
"$@" 2>"$messages"
status=$?
cat "$messages" >&2
if [ "$status" -eq 0 ] && grep -q '(C75[0-9][0-9])' "$messages"; then
  echo "error: the remark of ptxas above is refused" >&2
  # Or the next build would take it for finished.
  while [ $# -gt 1 ]; do
    [ "$1" = -o ] && rm -f "$2"
    shift
  done
  exit 1
fi
exit "$status"
