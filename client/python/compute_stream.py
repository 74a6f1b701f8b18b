"""Requests over one stream, which do not wait for each other.

    with ComputeStream(stub) as stream:
      answers = [stream.send(request) for request in requests]
      outputs = [answer.result().output for answer in answers]

`stub` is an AttentionServiceStub, requests are pb.ComputeAttentionRequests, as
example.py makes them. What a small request costs beside its computation is least
so.
"""

from attention.v1 import attention_pb2 as pb
from call_errors import CallError
from tagged_stream import TaggedStream


class ComputeStream(TaggedStream):
  """A pipeline of requests, which overtake each other.

  The server takes ServerLimits.max_pipelined_messages at a time, further ones
  wait here. Leaving a `with` block waits for all answers, or cancels them after
  an exception. Thread-safe.
  """

  def __init__(self, stub, timeout_s=None):
    """timeout_s is that of the whole stream; None: none."""
    super().__init__(stub.StreamComputeAttention, CallError, timeout_s)

  def send(self, request):
    """Sends a request, which is not repeated, whatever becomes of it.

    Returns:
      A concurrent.futures.Future of a pb.ComputeAttentionResponse. It raises
      CallError for what concerns the request, or the stream.
    """
    message = pb.StreamComputeAttentionRequest(tag=self._new_tag(),
                                               request=request)
    return self._send(message, lambda answer: answer.response)
