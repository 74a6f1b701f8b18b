"""Attention on a server, which keeps the keys and values of all contexts."""

from attention.v1 import attention_pb2 as pb
from decode_stream import DecodeStream
from sessions import Session, decode


class ServerAttention:
  """Contexts are sessions: they fork, truncate and delete themselves."""

  def __init__(self, stub, shape, stream_prompts=False):
    """For a model of this Shape; prompts go in one message, or streamed."""
    self._stub = stub
    self._stream_prompts = stream_prompts
    self._configuration = pb.SessionConfiguration(
        data_type=pb.DATA_TYPE_FLOAT32, query_head_count=shape.query_head_count,
        kv_head_count=shape.kv_head_count, head_dim_qk=shape.head_dim,
        head_dim_v=shape.head_dim, layer_count=shape.layer_count)

  def create(self):
    """An empty context."""
    return Session.create(self._stub, self._configuration)

  def prefill(self, context, layer, queries, keys, values):
    """A prompt: appends all of it, then attends with every query.

    Args:
      queries: [T, query heads, dim].
      keys, values: [T, K/V heads, dim].

    Returns:
      The output [T, query heads, dim].
    """
    if self._stream_prompts:
      context.stream_append([(layer, keys, values)], chunk_bytes=16 << 10)
    else:
      context.append(layer, keys, values)
    return context.attend(layer, queries)[0]

  def decode(self, contexts, counts, layer, queries, keys, values):
    """One step for all contexts; the tokens of each lie one after the other.

    Args:
      counts: tokens of each context, T in all.
      queries, keys, values: as above.

    Returns:
      As above.

    Raises:
      SessionError: the step of a context failed.
    """
    items = [(context, layer, count) for context, count in zip(contexts, counts)]
    return decode(self._stub, items, queries, keys, values).checked()

  def open_stream(self):
    """A DecodeStream, for steps that do not wait for each other."""
    return DecodeStream(self._stub)
