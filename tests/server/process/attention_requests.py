"""Requests with random tensors, and their answers computed by numpy."""

import numpy as np
from attention.v1 import attention_pb2 as pb


def descriptor(array):
  return pb.TensorDescriptor(shape=array.shape)


def make(query, key, value, **options):
  """A request of fp32 arrays in BSHD."""
  return pb.ComputeAttentionRequest(
      data_type=pb.DATA_TYPE_FLOAT32,
      query_descriptor=descriptor(query), key_descriptor=descriptor(key),
      value_descriptor=descriptor(value), query=query.tobytes(),
      key=key.tobytes(), value=value.tobytes(), **options)


def random_tensors(seed=1, batch=2, m=9, n=17, heads=3, dim=16):
  random = np.random.default_rng(seed)
  return tuple(random.standard_normal((batch, s, heads, dim), dtype=np.float32)
               for s in (m, n, n))


def small():
  return make(*random_tensors())


def endless(seconds_at_gigaflops=100):
  """Tiny on the wire, but as much work as said: strides of 0 repeat it."""
  heads, dim, m = 2, 128, 1024
  n = int(seconds_at_gigaflops * 1e9 / (4 * heads * dim * m))
  one = np.ones(dim, dtype=np.float32)

  def tensor(tokens):
    return pb.TensorDescriptor(shape=[1, tokens, heads, dim],
                               strides=[0, 0, 0, 1])
  return pb.ComputeAttentionRequest(
      data_type=pb.DATA_TYPE_FLOAT32, query_descriptor=tensor(m),
      key_descriptor=tensor(n), value_descriptor=tensor(n), query=one.tobytes(),
      key=one.tobytes(), value=one.tobytes())


def expected(query, key, value):
  scores = np.einsum("bmhd,bnhd->bhmn", query.astype(np.float64), key)
  scores /= np.sqrt(query.shape[-1])
  weights = np.exp(scores - scores.max(-1, keepdims=True))
  weights /= weights.sum(-1, keepdims=True)
  return np.einsum("bhmn,bnhd->bmhd", weights, value)


def output(response):
  return np.frombuffer(response.output, np.float32).reshape(
      response.output_descriptor.shape)
