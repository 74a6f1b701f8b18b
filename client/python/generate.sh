#!/bin/sh
# Generates the Python stubs of the public API:
#
#   client/python/generate.sh OUTPUT_FOLDER
#
# Afterwards, with OUTPUT_FOLDER in PYTHONPATH, `from attention.v1 import
# attention_pb2, attention_pb2_grpc` works. Needs protoc and grpc_python_plugin
# (packages protobuf-compiler and protobuf-compiler-grpc).
set -eu
if [ $# -ne 1 ]; then
  echo "usage: $0 OUTPUT_FOLDER" >&2
  exit 2
fi
mkdir -p "$1"
exec protoc -I "$(dirname "$0")/../../proto" \
  --python_out="$1" --grpc_python_out="$1" \
  --plugin=protoc-gen-grpc_python="$(command -v grpc_python_plugin)" \
  attention/v1/attention.proto
