#!/usr/bin/python3
"""Attends to one context whose parts are on two servers, and checks the answers.

    client/python/generate.sh build/python
    PYTHONPATH=build/python client/python/two_servers.py \\
      --servers localhost:50051 localhost:50052

Each server computes its part at the same time as the other; the outputs and
log-sum-exps are then merged: first of a request that carries each part's keys and
values, then of sessions that have them, over the whole context and over a range
that begins on one server and ends on the other. The exit code is 0 when all
answers are right.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor
import sys

import grpc
import numpy as np

from attention.v1 import attention_pb2 as pb
from attention.v1 import attention_pb2_grpc
from attention_states import merge_attention_states
from example import UNLIMITED, make_request, reference
from session_errors import SessionError
from sessions import Session


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


def merged_requests(stubs, q, k, v, middle, timeout_s):
  """Output [M, H, D] for q [M, H, D], k and v [N, H, D], cut at `middle`."""
  parts = slice(0, middle), slice(middle, None)
  calls = [attend(stub, q[np.newaxis], k[np.newaxis, part], v[np.newaxis, part],
                  timeout_s) for stub, part in zip(stubs, parts)]
  states = [state_of(call.result()) for call in calls]
  return merge_attention_states(*zip(*states))[0][0]


class SpanningSession:
  """One layer of a context whose first tokens are on one server, the rest on
  another."""

  def __init__(self, stubs, q, k, v, middle, timeout_s):
    configuration = pb.SessionConfiguration(
        data_type=pb.DATA_TYPE_FLOAT32, query_head_count=q.shape[1],
        kv_head_count=k.shape[1], head_dim_qk=k.shape[2],
        head_dim_v=v.shape[2], layer_count=1,
        # The queries come after all of either part.
        mask_type=pb.MASK_TYPE_NONE)
    self.middle = middle
    self.sessions = []
    for stub, part in zip(stubs, (slice(0, middle), slice(middle, None))):
      session = Session.create(stub, configuration, timeout_s=timeout_s)
      self.sessions.append(session)
      session.append(0, k[part], v[part])

  def attend(self, q, begin, end):
    """Output [M, H, D] for queries that see the tokens [begin, end)."""
    first, second = self.sessions
    parts = [(first, min(begin, self.middle), min(end, self.middle)),
             (second, max(begin - self.middle, 0), max(end - self.middle, 0))]
    with ThreadPoolExecutor() as pool:
      states = pool.map(
          lambda part: part[0].attend(0, q, key_range=part[1:],
                                      return_log_sum_exp=True), parts)
      return merge_attention_states(*zip(*states))[0]

  def delete(self):
    for session in self.sessions:
      session.delete()


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--servers", nargs=2, metavar="TARGET",
                      default=["localhost:50051", "localhost:50052"])
  parser.add_argument("--timeout", type=float, default=60, help="seconds")
  args = parser.parse_args()

  random = np.random.default_rng(1)
  q = random.standard_normal((1, 16, 128), dtype=np.float32)
  k = random.standard_normal((4000, 8, 128), dtype=np.float32)
  v = random.standard_normal((4000, 8, 128), dtype=np.float32)
  middle, begin, end = 1500, 1200, 2100
  channels = [grpc.insecure_channel(s, options=UNLIMITED) for s in args.servers]
  stubs = [attention_pb2_grpc.AttentionServiceStub(c) for c in channels]
  try:
    outputs = [("requests", 0, len(k),
                merged_requests(stubs, q, k, v, middle, args.timeout))]
    context = SpanningSession(stubs, q, k, v, middle, args.timeout)
    outputs += [("sessions", a, b, context.attend(q, a, b))
                for a, b in ((0, len(k)), (begin, end), (0, begin))]
    context.delete()
  except grpc.RpcError as error:
    print(f"{error.code().name}: {error.details()}", file=sys.stderr)
    return 1
  except SessionError as error:
    print(error, file=sys.stderr)
    return 1
  finally:
    for channel in channels:
      channel.close()

  all_good = True
  for how, a, b, output in outputs:
    # Causal, which a single query cannot tell.
    expected = reference(*(x[np.newaxis] for x in (q, k[a:b], v[a:b])))[0][0]
    error = np.abs(output - expected).max()
    good = error <= 1e-5 * np.abs(expected).max()
    all_good = all_good and good
    print(f"{how}, tokens {a} to {b} of {middle} on {args.servers[0]} and "
          f"{len(k) - middle} on {args.servers[1]}: max error {error:.2e}: "
          f"{'good' if good else 'WRONG'}")
  return 0 if all_good else 1


if __name__ == "__main__":
  sys.exit(main())
