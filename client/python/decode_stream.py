"""Steps of sessions over one stream, which do not wait for each other.

    with DecodeStream(stub) as stream:
      steps = [stream.send([(session, layer, 1)], q, k, v) for q, k, v in tokens]
      outputs = [step.result().output for step in steps]
"""

from attention.v1 import attention_pb2 as pb
from session_errors import SessionError
from sessions import decode_request, decoded_of
from tagged_stream import TaggedStream


class DecodeStream(TaggedStream):
  """A pipeline of steps: those of one session keep their order.

  Those of different sessions overtake each other. The server takes
  ServerLimits.max_pipelined_messages at a time, further ones wait here. Leaving
  a `with` block waits for all answers, or cancels them after an exception.
  """

  def __init__(self, stub, timeout_s=None):
    """timeout_s is that of the whole stream; None: none."""
    super().__init__(stub.StreamDecode, SessionError, timeout_s)

  def send(self, items, queries, keys, values, scale=None,
           return_log_sum_exp=False):
    """Sends a step; arguments are those of `decode`.

    The tokens count as appended at once, so that the next step may follow. A step
    is not repeated: after an error of it, or of the stream, wait for what is
    under way, then `refresh` its sessions.

    Returns:
      A concurrent.futures.Future of a Decoded. It raises SessionError for what
      concerns all items of the step, or the stream.

    Raises:
      ValueError: arrays do not fit the sessions.
    """
    request = decode_request(pb.StreamDecodeRequest, items, queries, keys, values,
                             scale, return_log_sum_exp, tag=self._new_tag())
    for session, layer, count in items:
      session.token_counts[layer] += count
    first = items[0][0]
    return self._send(request,
                      lambda response: decoded_of(response, request, first))
