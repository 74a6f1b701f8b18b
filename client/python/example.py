#!/usr/bin/python3
"""Computes attention on a server and checks the answer with numpy.

    client/python/generate.sh build/python
    PYTHONPATH=build/python client/python/example.py --server localhost:50051

Needs numpy and grpcio. The exit code is 0 when the answer is right.
"""

import argparse
import sys

import grpc
import numpy as np

from attention.v1 import attention_pb2 as pb
from attention.v1 import attention_pb2_grpc
from float8 import fp8_bytes, from_fp8, quantize_fp8

# gRPC's default would refuse answers of more than 4 MiB.
UNLIMITED = [("grpc.max_receive_message_length", -1),
             ("grpc.max_send_message_length", -1)]


def to_bf16(array):
  """Rounds fp32 to the nearest bf16; numpy has no bf16, so as uint16 bits."""
  bits = array.astype(np.float32).view(np.uint32)
  return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
  return (bits.astype(np.uint32) << 16).view(np.float32)


def make_request(q, k, v, data_type, scales=((), (), ())):
  """A causal request of BSHD arrays, whose elements are of `data_type`.

  `scales` are those of the heads of q, k and v; for DATA_TYPE_FLOAT8_E4M3 only.
  """
  to_bytes = (fp8_bytes if data_type == pb.DATA_TYPE_FLOAT8_E4M3
              else np.ndarray.tobytes)
  request = pb.ComputeAttentionRequest(
      data_type=data_type,
      layout=pb.LAYOUT_BSHD,
      mask_type=pb.MASK_TYPE_CAUSAL_BOTTOM_RIGHT,
      scale=1 / np.sqrt(q.shape[-1]),
      return_log_sum_exp=True,
      query_scales=scales[0], key_scales=scales[1], value_scales=scales[2],
      query=to_bytes(q), key=to_bytes(k), value=to_bytes(v))
  request.query_descriptor.shape.extend(q.shape)
  request.key_descriptor.shape.extend(k.shape)
  request.value_descriptor.shape.extend(v.shape)
  return request


def reference(q, k, v):
  """Causal attention and log-sum-exp in float64; [B, S, H, D] and [B, S, H]."""
  q, k, v = (x.astype(np.float64).swapaxes(1, 2) for x in (q, k, v))
  group = q.shape[1] // k.shape[1]  # query heads that share a K/V head
  k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
  scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
  m, n = scores.shape[-2:]
  scores[..., np.arange(n) > np.arange(m)[:, None] + n - m] = -np.inf
  top = scores.max(axis=-1, keepdims=True)
  weights = np.exp(scores - top)
  total = weights.sum(axis=-1, keepdims=True)
  output = weights / total @ v
  log_sum_exp = (np.log(total) + top)[..., 0]
  return output.swapaxes(1, 2), log_sum_exp.swapaxes(1, 2)


def check(stub, name, timeout_s):
  """Sends one request; returns whether the answer is within tolerance."""
  random = np.random.default_rng(1)
  q = random.standard_normal((2, 200, 8, 64), dtype=np.float32)
  k = random.standard_normal((2, 300, 2, 64), dtype=np.float32)
  v = random.standard_normal((2, 300, 2, 64), dtype=np.float32)
  scales = ((), (), ())
  if name == "bf16":
    sent = [to_bf16(x) for x in (q, k, v)]
    q, k, v = (from_bf16(x) for x in sent)
    data_type, tolerance = pb.DATA_TYPE_BFLOAT16, 2e-2
  elif name == "fp8":
    sent, scales = zip(*(quantize_fp8(x, head_axis=2) for x in (q, k, v)))
    q, k, v = (from_fp8(x) * s[:, None] for x, s in zip(sent, scales))
    # A server may round weights to 4 bits too.
    data_type, tolerance = pb.DATA_TYPE_FLOAT8_E4M3, 7e-2
  else:
    sent = [q, k, v]
    data_type, tolerance = pb.DATA_TYPE_FLOAT32, 1e-5

  response = stub.ComputeAttention(make_request(*sent, data_type, scales),
                                   timeout=timeout_s)
  shape = tuple(response.output_descriptor.shape)
  if response.data_type == pb.DATA_TYPE_BFLOAT16:
    output = from_bf16(np.frombuffer(response.output, np.uint16))
  else:
    output = np.frombuffer(response.output, np.float32)
  log_sum_exp = np.frombuffer(response.log_sum_exp, np.float32)

  expected, expected_lse = reference(q, k, v)
  error = np.abs(output.reshape(shape) - expected).max()
  lse_error = np.abs(log_sum_exp.reshape(shape[:3]) - expected_lse).max()
  good = error <= tolerance * np.abs(expected).max() and lse_error <= (
      1e-3 if name == "fp8" else 2e-4)
  print(f"{name}: output {shape} on {response.timings.device_name}, "
        f"max error {error:.2e}, log-sum-exp {lse_error:.2e}: "
        f"{'good' if good else 'WRONG'}")
  return good


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--server", default="localhost:50051")
  parser.add_argument("--timeout", type=float, default=60, help="seconds")
  args = parser.parse_args()
  with grpc.insecure_channel(args.server, options=UNLIMITED) as channel:
    stub = attention_pb2_grpc.AttentionServiceStub(channel)
    try:
      results = [check(stub, name, args.timeout)
                 for name in ("fp32", "bf16", "fp8")]
    except grpc.RpcError as error:
      print(f"{error.code().name}: {error.details()}", file=sys.stderr)
      return 1
  return 0 if all(results) else 1


if __name__ == "__main__":
  sys.exit(main())
