#!/usr/bin/python3
"""Attends to one context whose halves are on two servers, and checks the answer.

    client/python/generate.sh build/python
    PYTHONPATH=build/python client/python/two_servers.py \\
      --servers localhost:50051 localhost:50052

Each server computes its half at the same time as the other; the outputs and
log-sum-exps are then merged. The exit code is 0 when the answer is right.
"""

import argparse
import sys

import grpc
import numpy as np

from attention.v1 import attention_pb2 as pb
from attention.v1 import attention_pb2_grpc
from attention_states import merge_attention_states
from example import UNLIMITED, make_request, reference


def attend(stub, q, k, v, timeout_s):
  """Starts a call: every query sees all keys. BSHD arrays of fp32."""
  request = make_request(q, k, v, pb.DATA_TYPE_FLOAT32)
  request.mask_type = pb.MASK_TYPE_NONE
  return stub.ComputeAttention.future(request, timeout=timeout_s)


def state_of(response):
  """The output [B, M, H, D] and the log-sum-exp [B, M, H] of an answer."""
  return (np.frombuffer(response.output, np.float32).reshape(
              tuple(response.output_descriptor.shape)),
          np.frombuffer(response.log_sum_exp, np.float32).reshape(
              tuple(response.log_sum_exp_descriptor.shape)))


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--servers", nargs=2, metavar="TARGET",
                      default=["localhost:50051", "localhost:50052"])
  parser.add_argument("--timeout", type=float, default=60, help="seconds")
  args = parser.parse_args()

  random = np.random.default_rng(1)
  q = random.standard_normal((1, 1, 16, 128), dtype=np.float32)
  k = random.standard_normal((1, 4000, 8, 128), dtype=np.float32)
  v = random.standard_normal((1, 4000, 8, 128), dtype=np.float32)
  middle = 1500
  calls = []
  channels = [grpc.insecure_channel(s, options=UNLIMITED) for s in args.servers]
  try:
    for channel, part in zip(channels, (slice(0, middle), slice(middle, None))):
      stub = attention_pb2_grpc.AttentionServiceStub(channel)
      calls.append(attend(stub, q, k[:, part], v[:, part], args.timeout))
    states = [state_of(call.result()) for call in calls]
  except grpc.RpcError as error:
    print(f"{error.code().name}: {error.details()}", file=sys.stderr)
    return 1
  finally:
    for channel in channels:
      channel.close()

  output, _ = merge_attention_states(*zip(*states))
  expected, _ = reference(q, k, v)  # causal, which a single query cannot tell
  error = np.abs(output - expected).max()
  good = error <= 1e-5 * np.abs(expected).max()
  print(f"{middle} keys on {args.servers[0]}, {k.shape[1] - middle} on "
        f"{args.servers[1]}: max error {error:.2e}: "
        f"{'good' if good else 'WRONG'}")
  return 0 if good else 1


if __name__ == "__main__":
  sys.exit(main())
